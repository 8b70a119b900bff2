//! Requests in, answers out: checks, counts, and the domain's calls.

use crate::books::{BookError, Books};
use crate::{calendar, domain};
use address_book_contract::EncodedAnswer;
use address_book_contract::server::AddressBooks;
use address_book_contract::v1::{
    BusyAnswer, BusyRequest, ChangeAnswer, ChangeRequest, FreeSlotsAnswer, FreeSlotsRequest,
    LookupRequest, StatsAnswer, StatsRequest,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tonic::{Request, Response, Status};

/// The service over books that are somewhere.
pub struct Service<B> {
    books: Arc<B>,
    lookups: AtomicU64,
    changes: AtomicU64,
}

impl<B: Books> Service<B> {
    /// A service over `books`.
    pub fn new(books: Arc<B>) -> Self {
        Service {
            books,
            lookups: AtomicU64::new(0),
            changes: AtomicU64::new(0),
        }
    }
}

#[tonic::async_trait]
impl<B: Books> AddressBooks for Service<B> {
    async fn lookup(
        &self,
        request: Request<LookupRequest>,
    ) -> Result<Response<EncodedAnswer>, Status> {
        let (sent, _, request) = request.into_parts();
        domain::check_owner(&request.owner).map_err(BookError::from)?;
        self.lookups.fetch_add(1, Ordering::Relaxed);
        let answer = self
            .books
            .lookup(&sent, &request.owner, domain::part(&request));
        Ok(Response::new(answer.await?))
    }

    async fn change(
        &self,
        request: Request<ChangeRequest>,
    ) -> Result<Response<ChangeAnswer>, Status> {
        let (sent, _, request) = request.into_parts();
        domain::check_change(&request).map_err(BookError::from)?;
        self.changes.fetch_add(1, Ordering::Relaxed);
        let version = self.books.change(&sent, request).await?;
        Ok(Response::new(ChangeAnswer { version }))
    }

    async fn find_busy(
        &self,
        request: Request<BusyRequest>,
    ) -> Result<Response<BusyAnswer>, Status> {
        let request = request.into_inner();
        domain::check_owners(&request.owners).map_err(BookError::from)?;
        let within = calendar::window(request.within).map_err(BookError::from)?;
        let busy = self.books.busy(&request.owners, within).await?;
        Ok(Response::new(BusyAnswer { busy }))
    }

    async fn find_free_slots(
        &self,
        request: Request<FreeSlotsRequest>,
    ) -> Result<Response<FreeSlotsAnswer>, Status> {
        let request = request.into_inner();
        domain::check_owners(&request.owners).map_err(BookError::from)?;
        let within = calendar::window(request.within).map_err(BookError::from)?;
        let busy = self.books.busy(&request.owners, within).await?;
        let free = calendar::free(&busy, within, request.minutes);
        Ok(Response::new(FreeSlotsAnswer { free }))
    }

    async fn stats(
        &self,
        _request: Request<StatsRequest>,
    ) -> Result<Response<StatsAnswer>, Status> {
        let mut stats = StatsAnswer {
            lookups: self.lookups.load(Ordering::Relaxed),
            changes: self.changes.load(Ordering::Relaxed),
            ..StatsAnswer::default()
        };
        self.books.add_stats(&mut stats);
        Ok(Response::new(stats))
    }
}
