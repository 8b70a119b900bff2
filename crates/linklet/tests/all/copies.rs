//! How many servers have a strong commit when it is acknowledged.

use std::time::Duration;
use trefoil_coordination::LocalCoordinator;
use trefoil_linklet::{Builder, Error, Linklet, PlainMarshal, Replication, TooFew};

fn strong() -> Builder<String> {
    Linklet::builder("sessions", PlainMarshal)
        .replication(Replication::Strong)
        .patience(Duration::from_millis(300))
}

async fn listen(builder: Builder<String>, coordinator: &LocalCoordinator) -> Linklet<String> {
    let address = "127.0.0.1:0".parse().unwrap();
    let linklet = builder.listen(coordinator.clone(), address).await.unwrap();
    linklet.settled().await;
    linklet
}

/// Nobody has told the assigner anything of replicas.
#[tokio::test(flavor = "multi_thread")]
async fn a_strong_commit_has_a_copy_or_is_refused() {
    let coordinator = LocalCoordinator::new();
    let one = listen(strong(), &coordinator).await;
    let refused = one.insert(b"k", "1".to_owned()).await;
    assert!(
        matches!(refused, Err(Error::TooFewCopies { have: 1, need: 2 })),
        "{refused:?}"
    );
    assert_eq!(one.read(b"k", String::clone).await.unwrap(), None);
    let two = listen(strong(), &coordinator).await;
    let [one, two] = [one, two].map(|linklet| linklet.patient(Duration::from_secs(5)));
    // As soon as it has been given the key.
    for _ in 0..500 {
        match one.insert(b"k", "1".to_owned()).await {
            Ok(_) => break,
            Err(Error::TooFewCopies { .. } | Error::Moving { .. }) => {}
            // The other one has the key by now.
            Err(Error::NotMine(_)) => match two.insert(b"k", "1".to_owned()).await {
                Ok(_) => break,
                Err(error) => println!("not yet: {error}"),
            },
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(one.stats().entries == 1 && two.stats().entries == 1);
    assert_eq!(one.stats().commits_thin + two.stats().commits_thin, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_would_rather_have_commits_than_copies_is_told_of_each() {
    let coordinator = LocalCoordinator::new();
    let alone = listen(strong().too_few(TooFew::Acknowledge), &coordinator).await;
    for n in 0..5u8 {
        alone.insert(&[n], "1".to_owned()).await.unwrap();
    }
    assert_eq!(alone.stats().commits_thin, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_copy_is_enough_where_that_was_asked_for() {
    let coordinator = LocalCoordinator::new();
    let alone = listen(strong().copies(1), &coordinator).await;
    alone.insert(b"k", "1".to_owned()).await.unwrap();
    assert_eq!(alone.stats().commits_thin, 0);
}
