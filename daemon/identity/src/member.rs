//! The host as a member of a fleet: joins, leaves, and keeps its certificate fresh.

use super::dial::Dialer;
use super::enroll::{EnrollError, HostName, enroll, renew_by};
use super::files::{Files, FilesError, Stamps};
use super::store::{IdentityStore, Membership, StoreError};
use host::sync::lock;
use profile::text::with_causes;
use proto::credential::Credential;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;
use tonic::transport::ClientTlsConfig;

/// How often it is looked whether the certificate is to be renewed: clocks are set, and hosts
/// sleep.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// How often files that somebody else renews are looked at.
const FILES_INTERVAL: Duration = match cfg!(test) {
    true => Duration::from_millis(20),
    false => Duration::from_secs(5),
};

/// The host's membership with its key; notifies of each change.
pub type Changes = watch::Receiver<Option<Arc<(String, Membership)>>>;

/// Why a host does not join or leave.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Its key or its membership cannot be read or kept.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The collector does not take it.
    #[error(transparent)]
    Enroll(#[from] EnrollError),
    /// The certificate comes from files.
    #[error(
        "this host gets its certificate from files (`collector.tls`), so it cannot join or leave a \
         fleet: change the configuration instead"
    )]
    OfFiles,
    /// The files cannot be used.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The thread that touches the disk is gone.
    #[error("failed to store the identity: its thread ended")]
    Thread,
}

/// How renewing the certificate goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renewal {
    /// Why the last renewal failed; none when it did not.
    pub failed: Option<String>,
    /// When that was first. Unit: seconds since the Unix epoch.
    pub failed_unix_s: i64,
}

/// See the file.
pub struct HostMember {
    dir: PathBuf,
    host: HostName,
    /// The files of a certificate that another tool renews.
    files: Option<Files>,
    /// Open from the first use on: its directory is locked, so that no second daemon renews.
    store: Mutex<Option<Arc<IdentityStore>>>,
    /// The key, PEM, with what it is a member of.
    membership: watch::Sender<Option<Arc<(String, Membership)>>>,
    /// How often it joined or left: a certificate that is renewed is the same membership.
    joined: AtomicU64,
    renewal: Mutex<Renewal>,
    /// Connects for renewals, if the renewing thread is confined.
    dialer: OnceLock<Dialer>,
    /// Joining, leaving and renewing, one at a time: the disk and what is known must say the same.
    change: tokio::sync::Mutex<()>,
}

impl HostMember {
    /// The host with its identity in `dir`. Reads what is there, and makes nothing. Blocks on the
    /// disk.
    ///
    /// # Errors
    /// When what is there cannot be read.
    pub fn open(dir: PathBuf, host: HostName) -> Result<HostMember, StoreError> {
        let member = HostMember {
            dir,
            host,
            files: None,
            store: Mutex::default(),
            membership: watch::Sender::new(None),
            joined: AtomicU64::new(0),
            renewal: Mutex::default(),
            dialer: OnceLock::new(),
            change: tokio::sync::Mutex::default(),
        };
        if member.dir.exists() {
            let store = member.store()?;
            if let Some(membership) = store.membership()? {
                let known = Arc::new((store.key()?, membership));
                member.membership.send_replace(Some(known));
            }
        }
        Ok(member)
    }

    /// The host with a certificate that somebody else renews. Files that are not there yet, or do
    /// not fit together, are looked at again. Blocks on the disk.
    pub fn of_files(files: Files, host: HostName) -> HostMember {
        let read = files.read(&host.host_id);
        let member = HostMember {
            dir: PathBuf::new(),
            host,
            files: Some(files),
            store: Mutex::default(),
            membership: watch::Sender::new(None),
            joined: AtomicU64::new(0),
            renewal: Mutex::default(),
            dialer: OnceLock::new(),
            change: tokio::sync::Mutex::default(),
        };
        match read {
            Ok(known) => _ = member.membership.send_replace(Some(Arc::new(known))),
            Err(error) => lock(&member.renewal).failed = Some(with_causes(&error)),
        }
        member
    }

    /// True for a membership with a certificate that another tool renews.
    pub fn is_of_files(&self) -> bool {
        self.files.is_some()
    }

    fn store(&self) -> Result<Arc<IdentityStore>, StoreError> {
        let mut store = lock(&self.store);
        if let Some(store) = &*store {
            return Ok(Arc::clone(store));
        }
        let opened = Arc::new(IdentityStore::open(&self.dir)?);
        Ok(Arc::clone(store.insert(opened)))
    }

    /// Its id and name.
    pub fn host(&self) -> &HostName {
        &self.host
    }

    /// Its membership.
    pub fn membership(&self) -> Option<Membership> {
        let known = self.membership.borrow();
        known.as_ref().map(|known| known.1.clone())
    }

    /// Where its collector is.
    pub fn address(&self) -> Option<String> {
        let known = self.membership.borrow();
        known.as_ref().map(|known| known.1.collector.clone())
    }

    /// Where its collector is, and how to speak TLS with it.
    pub fn collector(&self) -> Option<(String, ClientTlsConfig)> {
        let known = self.membership.borrow().clone()?;
        let (key, membership) = &*known;
        Some((membership.collector.clone(), membership.tls(key)))
    }

    /// Distinguishes memberships: the number changes when the host joins again or leaves.
    pub fn joined(&self) -> u64 {
        self.joined.load(Ordering::Relaxed)
    }

    /// How renewing goes.
    pub fn renewal(&self) -> Renewal {
        lock(&self.renewal).clone()
    }

    /// Sets the dialer for renewals. Call it once.
    pub fn dial_by(&self, dialer: Dialer) {
        let _ = self.dialer.set(dialer);
    }

    /// Notifies of each change of the membership.
    pub fn changes(&self) -> Changes {
        self.membership.subscribe()
    }

    /// Joins the fleet that made an invitation, in place of the one before.
    ///
    /// # Errors
    /// [`JoinError`]; then all is as it was.
    pub async fn join(
        self: &Arc<Self>,
        address: &str,
        credential: &Credential,
        now_unix_s: i64,
    ) -> Result<Membership, JoinError> {
        if self.is_of_files() {
            return Err(JoinError::OfFiles);
        }
        let _change = self.change.lock().await;
        let key = self.on_disk(|store| store.key()).await?;
        let joined = enroll(address, credential, &self.host, &key, now_unix_s).await?;
        self.keep(key, joined.clone(), 1).await?;
        Ok(joined)
    }

    /// Leaves the fleet. The key stays: it is the host's.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub async fn leave(self: &Arc<Self>) -> Result<(), JoinError> {
        if self.is_of_files() {
            return Err(JoinError::OfFiles);
        }
        let _change = self.change.lock().await;
        self.on_disk(|store| store.forget()).await?;
        self.joined.fetch_add(1, Ordering::Relaxed);
        self.membership.send_replace(None);
        *lock(&self.renewal) = Renewal::default();
        Ok(())
    }

    /// Renews the certificate whenever it is due, for as long as this is polled. What fails is
    /// tried again each minute; the old certificate is good for a third of its time still.
    pub async fn keep_fresh(self: Arc<Self>, now_unix_s: impl Fn() -> i64 + Send) {
        if let Some(files) = &self.files {
            return self.follow(files, now_unix_s).await;
        }
        loop {
            let change = self.change.lock().await;
            let due = self.membership.borrow().clone();
            if let Some(known) = due.filter(|known| known.1.is_due(now_unix_s())) {
                let (key, membership) = &*known;
                let dialer = self.dialer.get();
                let now = now_unix_s();
                let renewed = renew_by(membership, &self.host, key, now, dialer).await;
                let kept = match renewed {
                    Ok(renewed) => self.keep(key.clone(), renewed, 0).await,
                    Err(error) => Err(error.into()),
                };
                let mut renewal = lock(&self.renewal);
                match kept {
                    Ok(()) => *renewal = Renewal::default(),
                    Err(error) => {
                        if renewal.failed.is_none() {
                            renewal.failed_unix_s = now_unix_s();
                        }
                        renewal.failed = Some(with_causes(&error));
                    }
                }
            }
            drop(change);
            sleep(LOOK_INTERVAL).await;
        }
    }

    /// Reads the files again whenever they have changed, for as long as this is polled.
    async fn follow(&self, files: &Files, now_unix_s: impl Fn() -> i64 + Send) {
        // What was read at the start may have changed since.
        let mut known: Option<Stamps> = None;
        loop {
            let (own, host_id) = (files.clone(), self.host.host_id.clone());
            let reading = tokio::task::spawn_blocking(move || {
                // Taken before: what changes meanwhile is read once more.
                let stamps = own.stamps();
                (known != Some(stamps)).then(|| (stamps, own.read(&host_id)))
            });
            if let Ok(Some((stamps, read))) = reading.await {
                known = Some(stamps);
                self.take(read, now_unix_s());
            }
            sleep(FILES_INTERVAL).await;
        }
    }

    /// Applies what was read, unless it is unchanged.
    fn take(&self, read: Result<(String, Membership), FilesError>, now_unix_s: i64) {
        match read {
            Ok(new) => {
                *lock(&self.renewal) = Renewal::default();
                let before = self.membership.borrow().clone();
                if before.as_deref() == Some(&new) {
                    return;
                }
                if before.is_none() {
                    // Before the waiting tasks are notified.
                    self.joined.fetch_add(1, Ordering::Relaxed);
                }
                self.membership.send_replace(Some(Arc::new(new)));
            }
            Err(error) => {
                let mut renewal = lock(&self.renewal);
                if renewal.failed.is_none() {
                    renewal.failed_unix_s = now_unix_s;
                }
                renewal.failed = Some(with_causes(&error));
            }
        }
    }

    async fn keep(
        self: &Arc<Self>,
        key: String,
        membership: Membership,
        joins: u64,
    ) -> Result<(), JoinError> {
        let kept = membership.clone();
        self.on_disk(move |store| store.keep(&kept)).await?;
        // Before the waiting tasks are notified.
        self.joined.fetch_add(joins, Ordering::Relaxed);
        self.membership
            .send_replace(Some(Arc::new((key, membership))));
        *lock(&self.renewal) = Renewal::default();
        Ok(())
    }

    async fn on_disk<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&IdentityStore) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, JoinError> {
        let member = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || work(&*member.store()?));
        Ok(done.await.map_err(|_| JoinError::Thread)??)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> HostName {
        HostName {
            host_id: "a".to_owned(),
            hostname: "a".to_owned(),
        }
    }

    #[test]
    fn a_host_that_never_joined_makes_nothing_on_the_disk() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("identity");
        let member = HostMember::open(path.clone(), name()).expect("opens");
        assert_eq!(member.membership(), None);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_membership_is_there_at_the_next_start_and_gone_after_leaving() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("identity");
        let membership = Membership {
            collector: "c1:7601".to_owned(),
            ..Membership::default()
        };
        {
            let store = IdentityStore::open(&path).expect("opens");
            store.keep(&membership).expect("kept");
        }
        let member = Arc::new(HostMember::open(path.clone(), name()).expect("opens"));
        assert_eq!(member.membership(), Some(membership));
        member.leave().await.expect("leaves");
        drop(member);
        let member = HostMember::open(path, name()).expect("opens");
        assert_eq!(member.membership(), None);
    }

    #[tokio::test]
    async fn files_are_followed_and_half_of_a_change_is_not_taken() {
        use rcgen::{CertificateParams, KeyPair};
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        let files = Files {
            collector: "c1:7601".to_owned(),
            server_name: String::new(),
            certificate: at("tls.crt"),
            key: at("tls.key"),
            authorities: at("ca.crt"),
        };
        let member = Arc::new(HostMember::of_files(files, name()));
        assert!(member.membership().is_none());
        assert!(member.renewal().failed.is_some(), "it says what is missing");
        let following = tokio::spawn(Arc::clone(&member).keep_fresh(|| 7));
        let mut changes = member.changes();
        // As who renews does it: each file in one step, and one after the other.
        let put = |name: &str, text: &str| {
            std::fs::write(at("new"), text).expect("written");
            std::fs::rename(at("new"), at(name)).expect("renamed");
        };
        let mut last = String::new();
        for _ in 0..3 {
            let key = KeyPair::generate().expect("a key");
            let signed = CertificateParams::default().self_signed(&key).expect("one");
            if last.is_empty() {
                put("ca.crt", &signed.pem());
            }
            put("tls.crt", &signed.pem());
            let told = async {
                while member.renewal().failed.is_none() {
                    sleep(FILES_INTERVAL).await;
                }
            };
            let in_time = tokio::time::timeout(Duration::from_secs(60), told).await;
            in_time.expect("it says that they do not fit");
            let known = member.membership().map(|known| known.certificate);
            assert_eq!(known.unwrap_or_default(), last, "its key is another");
            assert!(member.renewal().failed.is_some());
            put("tls.key", &key.serialize_pem());
            changes.changed().await.expect("it is followed");
            last = member.membership().expect("it is read").certificate;
            assert_eq!(last, signed.pem());
            assert_eq!(member.joined(), 1, "the same membership");
            assert!(member.renewal().failed.is_none());
        }
        following.abort();
        let credential = Credential {
            id: [0; 8],
            secret: [0; 20],
            authority: [0; 32],
        };
        let joined = member.join("c1:7601", &credential, 0).await;
        assert!(matches!(joined, Err(JoinError::OfFiles)));
        assert!(matches!(member.leave().await, Err(JoinError::OfFiles)));
    }

    #[tokio::test]
    async fn a_collector_that_is_not_there_leaves_the_host_as_it_was() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("identity");
        let member = Arc::new(HostMember::open(path, name()).expect("opens"));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        drop(listener);
        let credential = Credential {
            id: [0; 8],
            secret: [0; 20],
            authority: [0; 32],
        };
        let joined = member.join(&address, &credential, 0).await;
        assert!(matches!(
            joined,
            Err(JoinError::Enroll(EnrollError::Connect { .. }))
        ));
        assert_eq!(member.membership(), None);
    }
}
