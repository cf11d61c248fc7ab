//! Runs work that may wait for a disk off the thread that the services of the uplink share.

use crate::uplink::THREAD;
use sandbox::starter::Starter;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::spawn_blocking;

/// How much work of one purpose may wait for a disk at a time.
#[derive(Clone, Debug)]
pub struct Quota {
    places: Arc<Semaphore>,
    /// Starts threads that are not confined as the uplink's are.
    outside: Option<Starter>,
}

impl Quota {
    /// Creates a quota of `most` pieces of work at a time; more wait for their turn.
    pub fn new(most: usize) -> Quota {
        Quota {
            places: Arc::new(Semaphore::new(most)),
            outside: None,
        }
    }

    /// The same for work that reads other processes, which threads of the uplink cannot do.
    pub fn outside(most: usize, starter: Starter) -> Quota {
        Quota {
            outside: Some(starter),
            ..Quota::new(most)
        }
    }

    /// Does `work` on a thread that may block. A panic of the work is one of whoever asked.
    ///
    /// If the caller goes away, the work still runs to its end and keeps its place until then: a
    /// disk that hangs takes at most as many threads as the quota, however often it is called.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        // Nobody closes it.
        let place = Arc::clone(&self.places).acquire_owned().await;
        if let Some(outside) = &self.outside {
            let (tell, told) = oneshot::channel();
            outside.start(THREAD, move || {
                let _place = place;
                // Nobody may wait any more.
                let _ = tell.send(catch_unwind(AssertUnwindSafe(work)));
            });
            return match told.await {
                Ok(Ok(done)) => done,
                Ok(Err(panic)) => resume_unwind(panic),
                // The process ends.
                Err(_) => std::future::pending().await,
            };
        }
        let done = spawn_blocking(move || {
            let _place = place;
            work()
        });
        match done.await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(done) => done,
            Err(Ok(panic)) => resume_unwind(panic),
            // The runtime ends, and with it whoever asked.
            Err(Err(_)) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;
    use tokio::time::timeout;

    #[tokio::test]
    async fn work_that_is_given_up_keeps_its_place_until_it_ends() {
        let quota = Quota::new(1);
        let (go, wait) = sync_channel::<()>(1);
        let stuck = quota.run(move || wait.recv());
        assert!(timeout(Duration::from_millis(1), stuck).await.is_err());
        let next = quota.run(|| 7);
        tokio::pin!(next);
        assert!(timeout(Duration::from_millis(1), &mut next).await.is_err());
        go.send(()).expect("it still waits");
        assert_eq!(next.await, 7);
    }

    #[tokio::test]
    async fn work_outside_is_done_by_threads_that_were_not_started_here() {
        let quota = Quota::outside(2, Starter::new().expect("a thread"));
        let name = || std::thread::current().name().map(str::to_owned);
        assert_eq!(quota.run(name).await.as_deref(), Some(THREAD));
        let own = quota.clone();
        let asked = tokio::spawn(async move { own.run(|| panic!("on purpose")).await });
        assert!(asked.await.expect_err("it panics").is_panic());
    }

    #[tokio::test]
    async fn a_panic_reaches_who_asked_and_gives_the_place_back() {
        let quota = Quota::new(1);
        let own = quota.clone();
        let asked = tokio::spawn(async move { own.run(|| panic!("on purpose")).await });
        assert!(asked.await.expect_err("it panics").is_panic());
        assert_eq!(quota.run(|| 7).await, 7);
    }
}
