//! stub
use std::sync::Arc;
pub struct Listening;
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct ServeError;
impl ServeError { pub fn is_in_use(&self)->bool{false} }
pub const QUERIES_AT_ONCE: usize = 4;
pub fn bind(_: &crate::config::Server)->Result<Listening, ServeError>{Ok(Listening)}
pub async fn serve(_l: Listening, agent: Arc<crate::agent::Agent>, mut s: tokio::sync::watch::Receiver<bool>)->Result<(), ServeError>{
    loop {
        tokio::select!{ _ = s.changed() => return Ok(()), _ = tokio::time::sleep(std::time::Duration::from_secs(5)) => {
            agent.sampler.flush();
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            let r = agent.recorder.read().unwrap();
            println!("{:?}", r.stats());
            let q = profile::Query::default();
            let mut runner = profile::QueryRunner::new(&q);
            let _ = runner;
        } }
    }
}
