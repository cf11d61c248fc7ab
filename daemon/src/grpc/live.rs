//! Live streams: each window as it closes, or each interval's parts.
//!
//! Only numbers are stored per client: the recorder says how far it has come, and the client's task
//! asks it for what is new. A slow client finds windows it has not read still in the recorder, up
//! to [`LAG_MAX`]; it misses older ones, and the answer says how many.

use super::answer::{Gone, Outlet};
use super::service::Service;
use aggregate::recorder::{Progress, WindowRange, read};
use host::time::MonotonicTime;
use profile::Query;
use proto::agent::StreamProfilesResponse;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tonic::{Code, Status};

/// Windows a client may be behind before it misses some. Unit: windows, 10 s each by default.
const LAG_MAX: u64 = 6;

/// Sends what is new to `outlet` until the client goes or the daemon stops.
pub(super) async fn run(
    service: Service,
    query: Arc<Query>,
    interval: Option<Duration>,
    outlet: Outlet<StreamProfilesResponse>,
) {
    let mut shutdown = service.shutdown.clone();
    let stopped = tokio::select! {
        _ = stream(&service, query, interval, &outlet) => false,
        () = outlet.closed() => false,
        _ = shutdown.wait_for(|&stop| stop) => true,
    };
    if stopped {
        // A client that has gone does not need to hear it.
        let _ = outlet
            .send(Err(Status::unavailable("the daemon is shutting down")))
            .await;
    }
}

async fn stream(
    service: &Service,
    query: Arc<Query>,
    interval: Option<Duration>,
    outlet: &Outlet<StreamProfilesResponse>,
) -> Result<(), Gone> {
    let _watching = interval.map(|interval| service.host.watch(interval));
    let mut progress = read(service.host.recorder()).subscribe();
    let mut cursor = Cursor::new(*progress.borrow_and_update(), interval);
    loop {
        let now = next(&mut progress).await?;
        while let Some(span) = cursor.advance(now) {
            let sent = match service.profile(span, query.clone()).await {
                Ok((chunks, covered, _hold)) => {
                    cursor.missed += covered.missed;
                    if covered.windows == 0 {
                        continue;
                    }
                    let mut missed = std::mem::take(&mut cursor.missed);
                    let wrap = |chunk| StreamProfilesResponse {
                        chunk: Some(chunk),
                        missed: u32::try_from(std::mem::take(&mut missed)).unwrap_or(u32::MAX),
                    };
                    outlet.send_all(chunks, wrap).await
                }
                // Answers of others hold all memory. That passes, and the stream goes on.
                Err(status) if status.code() == Code::ResourceExhausted => {
                    cursor.missed += match span {
                        WindowRange::Parts(after, upto) => upto - after,
                        WindowRange::Window(_) | WindowRange::Time(..) => 1,
                    };
                    continue;
                }
                Err(status) => {
                    outlet.send(Err(status)).await?;
                    Err(Gone)
                }
            };
            sent?;
        }
    }
}

async fn next(progress: &mut watch::Receiver<Progress>) -> Result<Progress, Gone> {
    // The sender lives as long as the recorder.
    progress.changed().await.map_err(|_| Gone)?;
    Ok(*progress.borrow_and_update())
}

/// What a client has received, by number.
struct Cursor {
    interval: Option<Duration>,
    window: u64,
    part: u64,
    end: MonotonicTime,
    missed: u64,
}

impl Cursor {
    fn new(now: Progress, interval: Option<Duration>) -> Cursor {
        let Progress { window, part, end } = now;
        Cursor {
            interval,
            window,
            part,
            end,
            missed: 0,
        }
    }

    /// What to send next if the recorder is at `now`.
    fn advance(&mut self, now: Progress) -> Option<WindowRange> {
        match self.interval {
            None => {
                let behind = now.window.saturating_sub(self.window);
                if behind == 0 {
                    return None;
                }
                let skipped = behind.saturating_sub(LAG_MAX);
                self.missed += skipped;
                self.window += skipped + 1;
                Some(WindowRange::Window(self.window))
            }
            Some(interval) => {
                // Parts come at the shortest interval anybody asked for, and not to the
                // millisecond.
                if now.part <= self.part || now.end.since(self.end) < interval / 4 * 3 {
                    return None;
                }
                let span = WindowRange::Parts(self.part, now.part);
                (self.part, self.end) = (now.part, now.end);
                Some(span)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::held::{ANSWERS_REFUSED, HeldAnswers};
    use super::super::tests::FakeHost;
    use super::*;
    use std::sync::atomic::Ordering;
    use tokio::sync::Semaphore;
    use tokio_stream::StreamExt;

    fn at(window: u64, part: u64, end_ms: u64) -> Progress {
        Progress {
            window,
            part,
            end: MonotonicTime(end_ms * 1_000_000),
        }
    }

    #[test]
    fn every_window_is_sent_once() {
        let mut cursor = Cursor::new(at(3, 9, 0), None);
        assert_eq!(cursor.advance(at(3, 10, 0)), None);
        assert_eq!(cursor.advance(at(5, 10, 0)), Some(WindowRange::Window(4)));
        assert_eq!(cursor.advance(at(5, 10, 0)), Some(WindowRange::Window(5)));
        assert_eq!(cursor.advance(at(5, 10, 0)), None);
        assert_eq!(cursor.missed, 0);
    }

    #[test]
    fn a_slow_client_misses_the_oldest() {
        let mut cursor = Cursor::new(at(0, 0, 0), None);
        assert_eq!(
            cursor.advance(at(20, 20, 0)),
            Some(WindowRange::Window(20 - LAG_MAX + 1))
        );
        assert_eq!(cursor.missed, 20 - LAG_MAX);
    }

    #[test]
    fn an_interval_takes_the_parts_of_faster_ones_together() {
        let mut cursor = Cursor::new(at(0, 2, 1000), Some(Duration::from_secs(1)));
        assert_eq!(cursor.advance(at(0, 3, 1500)), None);
        assert_eq!(
            cursor.advance(at(0, 4, 1990)),
            Some(WindowRange::Parts(2, 4))
        );
        assert_eq!(cursor.advance(at(0, 4, 1990)), None);
    }

    #[tokio::test]
    async fn a_window_that_finds_no_memory_is_missed_and_the_stream_goes_on() {
        let host = FakeHost::new();
        let (_stop, shutdown) = watch::channel(false);
        let patience = Duration::from_secs(30);
        let mut service = Service::new(host.clone(), shutdown, patience);
        service.held = HeldAnswers::new(1 << 10);
        let query = Arc::new(Query::default());
        host.add(true, &[("/a", "first", 1)]);
        let first = service.profile(WindowRange::Window(1), query.clone()).await;
        let Ok((.., hold)) = first else {
            panic!("refused")
        };
        let place = Arc::new(Semaphore::new(1)).acquire_owned().await;
        let (outlet, mut answers) = Outlet::new(None, patience, place.expect("a place"));
        let refused = ANSWERS_REFUSED.load(Ordering::Relaxed);
        let client = async {
            host.add(true, &[("/a", "second", 1)]);
            while ANSWERS_REFUSED.load(Ordering::Relaxed) == refused {
                tokio::task::yield_now().await;
            }
            drop(hold);
            host.add(true, &[("/a", "third", 1)]);
            answers.next().await
        };
        let answer = tokio::select! {
            biased;
            _ = stream(&service, query, None, &outlet) => None,
            answer = client => answer,
        };
        let answer = answer.expect("the stream goes on").expect("answered");
        assert_eq!(answer.missed, 1);
    }
}
