//! Metrics over HTTP for a front door that stands alone: a backend serves them
//! on its own port.

use super::observatory::Observatory;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use std::net::TcpListener;
use std::sync::Arc;
use trefoil_backend::{MetricSource as _, encode_certificate};
use trefoil_endpoint::{Endpoint, EndpointError};
use trefoil_tls::Tls;

/// Begins to serve on a socket that was taken before. `tls`: what is spoken with
/// the cell, whose certificate is told of, too.
pub fn serve_metrics(
    listener: TcpListener,
    cell: String,
    observatory: Arc<Observatory>,
    tls: Option<Tls>,
) -> Result<Endpoint, EndpointError> {
    let cell: Arc<str> = cell.into();
    let text = move || {
        render(Door {
            cell: Arc::clone(&cell),
            observatory: Arc::clone(&observatory),
            tls: tls.clone(),
        })
    };
    Endpoint::of(listener, Arc::new(text))
}

fn render(door: Door) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(door));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Door {
    cell: Arc<str>,
    observatory: Arc<Observatory>,
    tls: Option<Tls>,
}

impl Collector for Door {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        if let Some(tls) = &self.tls {
            encode_certificate(&tls.status(), &self.cell, &mut encoder)?;
        }
        self.observatory.encode(&self.cell, &mut encoder)
    }
}
