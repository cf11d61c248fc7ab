//! The page for people of other machines: logins, sessions, names, proxies, certificates.

use crate::identity::{Running, start_with};
use flate2::read::GzDecoder;
use proto::collector::access_service_client::AccessServiceClient;
use proto::collector::{OpenPageRequest, Role};
use proto::credential::Credential;
use proto::pin::Pinned;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::ServerName;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;

/// An answer.
#[derive(Debug)]
pub struct Reply {
    /// Its code.
    pub status: u16,
    /// Its head.
    pub head: String,
    /// What follows.
    pub body: Vec<u8>,
}

impl Reply {
    /// What it says of this.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    /// The cookie that it sets, as it is sent back.
    pub fn cookie(&self) -> String {
        let cookie = self.header("set-cookie").expect("a cookie");
        let (pair, _) = cookie.split_once(';').expect("attributes");
        format!("Cookie: {pair}\r\n")
    }
}

/// One request over a connection.
pub async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> Reply {
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    // Whoever ends a connection of TLS without a word has said all it has to say.
    let _ = stream.read_to_end(&mut answer).await;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no head: {:?}", String::from_utf8_lossy(&answer)));
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Reply {
        status: status.expect("a status"),
        head,
        body: answer[end + 4..].to_vec(),
    }
}

/// A request; `more` has further headers.
pub fn request(method: &str, path: &str, host: &str, more: &str, body: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {}\r\n\
         {more}\r\n{body}",
        body.len()
    )
}

/// A collector whose page others can reach.
pub struct Site {
    /// All of it.
    pub running: Running,
    /// The key of its authority.
    pin: [u8; 32],
}

/// Its page over HTTPS, under a name.
pub fn with_https(config: &mut collector::config::Config) {
    config.listen.https = Some(([127, 0, 0, 1], 0).into());
    config.web.external_url = Some("https://profiles.example.net".to_owned());
}

impl Site {
    async fn start() -> Site {
        Site::with(with_https).await
    }

    /// With a configuration of its own.
    pub async fn with(change: impl Fn(&mut collector::config::Config)) -> Site {
        let dir = tempfile::tempdir().expect("a directory");
        let running = start_with(dir, Arc::default(), change).await;
        Site::of(running).await
    }

    /// Wraps a collector that runs.
    pub async fn of(running: Running) -> Site {
        let token = running.token("whoever", Role::Metrics).await;
        running.remove("whoever").await;
        let pin = Credential::parse_token(&token).expect("a token").authority;
        Site { running, pin }
    }

    fn https(&self) -> SocketAddr {
        self.running.at.https.expect("it listens")
    }

    /// Over TLS, as a browser that trusts the fleet's authority.
    pub async fn encrypted(&self) -> tokio_rustls::client::TlsStream<TcpStream> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Pinned::new(self.pin)))
            .with_no_client_auth();
        let stream = TcpStream::connect(self.https())
            .await
            .expect("a connection");
        let name = ServerName::try_from("profiles.example.net").expect("a name");
        let connected = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await;
        connected.expect("a handshake")
    }

    /// A request over TLS.
    pub async fn ask(&self, method: &str, path: &str, more: &str, body: &str) -> Reply {
        let request = request(method, path, "profiles.example.net", more, body);
        exchange(self.encrypted().await, &request).await
    }

    /// The same, to get something.
    pub async fn get(&self, path: &str, more: &str) -> Reply {
        self.ask("GET", path, more, "").await
    }

    /// What comes of logging in with a token.
    pub async fn log_in(&self, token: &str) -> Reply {
        let origin = "Origin: https://profiles.example.net\r\n";
        let body = format!("token {token}");
        self.ask("POST", "/api/login", origin, &body).await
    }
}

const CALL: &str = "/fleetprof.collector.v1.QueryService/Status";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panel_is_framed_by_the_named_sites_and_nothing_else_by_anybody() {
    let named = |config: &mut collector::config::Config| {
        with_https(config);
        config.web.embed_ancestors = Some("https://a.example,https://b.example:8443".to_owned());
    };
    let framed =
        "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n";
    let by = |reply: &Reply| {
        let policy = reply.header("content-security-policy").expect("a policy");
        let (_, ancestors) = policy.split_once("frame-ancestors ").expect("who may");
        ancestors.to_owned()
    };
    let site = Site::with(named).await;
    let token = site.running.token("vera", Role::Viewer).await;
    let cookie = site.log_in(&token).await.cookie();
    let panel = site
        .get("/?embed=chart", &format!("{framed}{cookie}"))
        .await;
    assert_eq!(panel.status, 200);
    assert_eq!(by(&panel), "https://a.example https://b.example:8443");
    assert_eq!(panel.header("x-frame-options"), None);
    // A browser sends no session to a frame of another site: that is said there.
    let unknown = site.get("/?embed=chart", framed).await;
    assert_eq!(unknown.status, 401);
    assert_eq!(by(&unknown), "https://a.example https://b.example:8443");
    let said = String::from_utf8_lossy(&unknown.body).into_owned();
    assert!(said.contains("not logged in"), "{said}");
    for path in ["/", "/login", "/login?embed", "/api/session?embed"] {
        let reply = site.get(path, &cookie).await;
        assert_eq!(by(&reply), "'none'", "{path}");
        assert_eq!(reply.header("x-frame-options"), Some("DENY"), "{path}");
    }
    let site = Site::start().await;
    let nobody = site.get("/?embed=chart", &cookie).await;
    assert_eq!(by(&nobody), "'none'", "unless somebody is named");
    assert_eq!(nobody.header("x-frame-options"), Some("DENY"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_not_logged_in_gets_the_login_and_nothing_else() {
    let site = Site::start().await;
    let page = site.get("/", "").await;
    assert_eq!(
        (page.status, page.header("location")),
        (303, Some("/login"))
    );
    for path in [
        "/login.js/../metrics",
        "/metrics",
        "/api/profile.folded",
        "/api/session",
        "/assets/x.js",
        "/other",
    ] {
        let refused = site.get(path, "").await;
        assert_eq!(refused.status, 401, "{path}");
    }
    let call = site
        .ask(
            "POST",
            CALL,
            "Content-Type: application/grpc-web+proto\r\n",
            "",
        )
        .await;
    assert_eq!(call.header("grpc-status"), Some("16"), "{call:?}");
    for path in ["/login", "/login.js", "/login.css", "/healthz"] {
        let open = site.get(path, "").await;
        assert_eq!(open.status, 200, "{path}");
        // What scripts may do there is what they may do everywhere.
        let policy = open.header("content-security-policy").expect("a policy");
        assert!(policy.contains("script-src 'self'") && policy.contains("form-action 'none'"));
    }
    let login = site.get("/login", "").await;
    let text = String::from_utf8_lossy(&login.body);
    assert!(
        !text.contains("<script>") && !text.contains("style="),
        "{text}"
    );
    // On the collector's own machine all is as it was.
    let stream = TcpStream::connect(site.running.at.http)
        .await
        .expect("a connection");
    let local = request("GET", "/metrics", "localhost", "", "");
    assert_eq!(exchange(stream, &local).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_becomes_a_session_that_ends_by_logout_by_removal_and_not_by_a_restart() {
    let site = Site::start().await;
    let token = site.running.token("anna", Role::Viewer).await;
    assert_eq!(site.log_in("fpu1_x").await.status, 401);
    let logged_in = site.log_in(&token).await;
    assert_eq!(logged_in.status, 204, "{logged_in:?}");
    let set = logged_in.header("set-cookie").expect("a cookie");
    assert!(set.starts_with("__Host-fleetprof="), "{set}");
    for flag in [
        "; Path=/",
        "; Secure",
        "; HttpOnly",
        "; SameSite=Lax",
        "; Max-Age=604800",
    ] {
        assert!(set.contains(flag), "{set}");
    }
    assert!(!set.contains("Domain"));
    let cookie = logged_in.cookie();
    let who = site.get("/api/session", &cookie).await;
    assert_eq!(who.status, 200, "{who:?}");
    assert!(String::from_utf8_lossy(&who.body).contains("\"name\":\"anna\""));
    assert_eq!(site.get("/", &cookie).await.status, 200);
    let captures = "/fleetprof.collector.v1.CaptureService/Capture";
    let denied = site.ask("POST", captures, &cookie, "").await;
    assert_eq!(denied.header("grpc-status"), Some("7"), "{denied:?}");
    // It is noted, and on the disk soon.
    let mut found = None;
    for _ in 0..100 {
        let lines = site.running.audit().await;
        found = lines
            .into_iter()
            .find(|line| line["action"] == "page-login");
        if found.is_some() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let line = found.expect("it is on record");
    assert_eq!(line["who"], "anna");
    assert!(
        line["peer"]
            .as_str()
            .expect("text")
            .starts_with("127.0.0.1:")
    );
    // What is kept of it is no cookie.
    let secret = cookie.split_once('=').expect("a value").1.trim().to_owned();
    let identity = site.running.dir.path().join("identity");
    for entry in std::fs::read_dir(&identity).expect("a folder") {
        let kept = std::fs::read(entry.expect("an entry").path()).expect("a file");
        let found = kept
            .windows(secret.len())
            .any(|part| part == secret.as_bytes());
        assert!(!found, "the cookie is on the disk");
    }
    let site = Site::of(site.running.restart_with(with_https).await).await;
    assert_eq!(site.get("/", &cookie).await.status, 200);
    let out = site.ask("POST", "/api/logout", &cookie, "").await;
    assert_eq!(out.status, 204);
    assert!(out.header("set-cookie").expect("one").contains("Max-Age=0"));
    assert_eq!(site.get("/metrics", &cookie).await.status, 401);
    let again = site.log_in(&token).await.cookie();
    assert_eq!(site.get("/metrics", &again).await.status, 200);
    site.running.remove("anna").await;
    assert_eq!(site.get("/metrics", &again).await.status, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_opens_the_page_once() {
    let site = Site::start().await;
    let token = site.running.token("anna", Role::Viewer).await;
    let mut asking = AccessServiceClient::new(site.running.as_(&token).await);
    let page = asking.open_page(OpenPageRequest {}).await;
    let url = page.expect("a link").into_inner().url;
    let (before, link) = url.split_once("#once=").expect("behind the fragment");
    assert_eq!(before, "https://profiles.example.net/login");
    let body = format!("link {link}");
    let first = site.ask("POST", "/api/login", "", &body).await;
    assert_eq!(first.status, 204, "{first:?}");
    assert_eq!(site.get("/", &first.cookie()).await.status, 200);
    let second = site.ask("POST", "/api/login", "", &body).await;
    assert_eq!(second.status, 401);
    assert!(second.header("set-cookie").is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_origins_and_other_names_get_nothing() {
    let site = Site::start().await;
    let token = site.running.token("anna", Role::Admin).await;
    let cookie = site.log_in(&token).await.cookie();
    for origin in [
        "http://profiles.example.net",
        "https://example.net",
        "https://profiles.example.net.evil.example",
        "null",
    ] {
        let more = format!("{cookie}Origin: {origin}\r\n");
        assert_eq!(
            site.ask("POST", CALL, &more, "").await.status,
            403,
            "{origin}"
        );
    }
    let cross = format!("{cookie}Sec-Fetch-Site: cross-site\r\n");
    assert_eq!(site.ask("POST", CALL, &cross, "").await.status, 403);
    assert_eq!(site.get("/api/profile.folded", &cross).await.status, 403);
    // A name that somebody had point here.
    let rebound = request("GET", "/metrics", "evil.example", &cookie, "");
    let refused = exchange(site.encrypted().await, &rebound).await;
    assert_eq!(refused.status, 403);
    let stream = TcpStream::connect(site.running.at.http)
        .await
        .expect("a connection");
    let external = request("GET", "/metrics", "profiles.example.net", "", "");
    let refused = exchange(stream, &external).await;
    assert_eq!(
        refused.status, 403,
        "whoever is believed has no name elsewhere"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scraper_gets_the_metrics_and_nothing_else() {
    let site = Site::start().await;
    let token = site.running.token("prometheus", Role::Metrics).await;
    let bearer = format!("Authorization: Bearer {token}\r\n");
    let scraped = site.get("/metrics", &bearer).await;
    assert_eq!(scraped.status, 200);
    assert_eq!(site.get("/api/profile.folded", &bearer).await.status, 403);
    assert_eq!(site.get("/", &bearer).await.status, 403);
    let wrong = "Authorization: Bearer fpu1_x\r\n";
    assert_eq!(site.get("/metrics", wrong).await.status, 401);
    // Compressed, where that is asked for.
    let packed = format!("{bearer}Accept-Encoding: gzip\r\n");
    let packed = site.get("/metrics", &packed).await;
    assert_eq!(packed.header("content-encoding"), Some("gzip"));
    assert!(packed.body.len() * 3 < scraped.body.len());
    let mut text = String::new();
    let read = GzDecoder::new(&packed.body[..]).read_to_string(&mut text);
    read.expect("gzip");
    assert!(text.contains("fleetprof_collector_streams"));
}

/// A request to the plain listener, from an address of this machine.
async fn from(site: &Site, address: [u8; 4], path: &str, more: &str) -> Reply {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((address, 0).into()).expect("an address");
    let stream = socket.connect(site.running.at.http).await;
    let request = request("GET", path, "profiles.example.net", more, "");
    exchange(stream.expect("a connection"), &request).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_is_believed_and_nobody_who_pretends_to_be_one() {
    let site = Site::with(|config| {
        config.web.external_url = Some("https://profiles.example.net".to_owned());
        config.web.proxy.from = Some("127.0.0.2".to_owned());
        config.web.proxy.user_header = Some("X-User".to_owned());
        config.web.proxy.role_header = Some("X-Role".to_owned());
    })
    .await;
    let (proxy, other) = ([127, 0, 0, 2], [127, 0, 0, 3]);
    let anna = "X-User: anna\r\n";
    let who = from(&site, proxy, "/api/session", anna).await;
    assert_eq!(who.status, 200, "{who:?}");
    let text = String::from_utf8_lossy(&who.body).into_owned();
    assert!(
        text.contains("proxy:anna") && text.contains("viewer"),
        "{text}"
    );
    let admin = "X-User: anna\r\nX-Role: admin\r\n";
    let who = from(&site, proxy, "/api/session", admin).await;
    assert!(String::from_utf8_lossy(&who.body).contains("admin"));
    // From elsewhere the headers are worth nothing, on this machine as well.
    for headers in [anna, admin, "x-user: anna\r\n", "X-USER: anna\r\n"] {
        let refused = from(&site, other, "/api/session", headers).await;
        assert_eq!(refused.status, 401, "{headers}");
    }
    assert_eq!(from(&site, other, "/metrics", "").await.status, 401);
    for wrong in [
        "X-User: anna\r\nX-User: ben\r\n",
        "X-User: anna\r\nX-Role: root\r\n",
        "X-User: anna\r\nX-Role: viewer\r\nX-Role: admin\r\n",
        "X-User: \r\n",
    ] {
        let refused = from(&site, proxy, "/api/session", wrong).await;
        assert_eq!(refused.status, 403, "{wrong}");
    }
    // The proxy's own requests for nobody are nobody's.
    assert_eq!(from(&site, proxy, "/api/session", "").await.status, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_gives_people_their_scope_and_one_it_leaves_out_opens_nothing() {
    let site = Site::with(|config| {
        config.web.external_url = Some("https://profiles.example.net".to_owned());
        config.web.proxy.from = Some("127.0.0.2".to_owned());
        config.web.proxy.user_header = Some("X-User".to_owned());
        config.web.proxy.role_header = Some("X-Role".to_owned());
        config.web.proxy.scope_header = Some("X-Scope".to_owned());
    })
    .await;
    let proxy = [127, 0, 0, 2];
    let ask = async |path: &str, more: &str| {
        let headers = format!("X-User: anna\r\n{more}");
        from(&site, proxy, path, &headers).await
    };
    // What is of the collector as a whole is for those without a scope.
    let scoped = "X-Scope: team=\"web\"\r\n";
    assert_eq!(ask("/api/session", scoped).await.status, 200);
    let refused = ask("/metrics", scoped).await;
    assert_eq!(refused.status, 403, "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.body).contains("scope"));
    assert_eq!(ask("/metrics", "X-Scope: *\r\n").await.status, 200);
    assert_eq!(ask("/metrics", "X-Role: admin\r\n").await.status, 200);
    for wrong in [
        "",
        "X-Scope: \r\n",
        "X-Scope: team=\"\r\n",
        "X-Scope: comm=\"nginx\"\r\n",
        "X-Scope: team!=\"web\"\r\n",
        "X-Scope: team=\"web\"\r\nX-Scope: *\r\n",
        "X-Role: admin\r\nX-Scope: team=\"web\"\r\n",
    ] {
        let refused = ask("/api/session", wrong).await;
        assert_eq!(refused.status, 403, "{wrong}");
        let text = String::from_utf8_lossy(&refused.body).into_owned();
        assert!(text.starts_with("the proxy sends"), "{text}");
    }
    // Who comes from elsewhere gives themselves none.
    let token = site.running.token("ben", Role::Viewer).await;
    let own = format!("Authorization: Bearer {token}\r\nX-Scope: team=\"web\"\r\n");
    assert_eq!(
        from(&site, [127, 0, 0, 3], "/metrics", &own).await.status,
        200
    );
}

/// A certificate of its own, with its key, in a folder.
pub fn certificate(dir: &Path) -> Vec<u8> {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["profiles.example.net".to_owned()]).expect("a name");
    let signed = params.self_signed(&key).expect("a certificate");
    std::fs::write(dir.join("page.pem"), signed.pem()).expect("written");
    std::fs::write(dir.join("page.key"), key.serialize_pem()).expect("written");
    signed.der().to_vec()
}

/// The certificate that a listener shows.
pub async fn shown(at: SocketAddr) -> Vec<u8> {
    #[derive(Debug)]
    struct Any(Pinned);
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::pki_types::{CertificateDer, UnixTime};
    use rustls::{DigitallySignedStruct, Error, SignatureScheme};
    impl ServerCertVerifier for Any {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.0.verify_tls12_signature(message, certificate, signed)
        }
        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.0.verify_tls13_signature(message, certificate, signed)
        }
        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.0.supported_verify_schemes()
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Any(Pinned::new([0; 32]))))
        .with_no_client_auth();
    let stream = TcpStream::connect(at).await.expect("a connection");
    let name = ServerName::try_from("profiles.example.net").expect("a name");
    let connected = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await;
    let connected = connected.expect("a handshake");
    let chain = connected.get_ref().1.peer_certificates().expect("a chain");
    chain[0].to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operators_certificate_is_shown_and_read_again_when_it_changes() {
    let files = tempfile::tempdir().expect("a directory");
    let first = certificate(files.path());
    let (cert, key) = (files.path().join("page.pem"), files.path().join("page.key"));
    let site = Site::with(|config| {
        with_https(config);
        config.web.tls.cert_file = Some(cert.clone());
        config.web.tls.key_file = Some(key.clone());
    })
    .await;
    assert_eq!(shown(site.https()).await, first);
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    let second = certificate(files.path());
    assert_eq!(shown(site.https()).await, second);
    // What is no certificate leaves the one before in place.
    std::fs::write(&cert, "nonsense").expect("written");
    assert_eq!(shown(site.https()).await, second);
}
