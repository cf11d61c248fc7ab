//! Values as written in a file, a variable or a flag, and the check that each must pass.

pub(crate) mod items;

pub use items::{Field, Item, Items};
use serde::{Serialize, Serializer};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// A value before it has a type of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An integer.
    Int(u64),
    /// Anything else.
    Text(String),
    /// A list of texts.
    List(Vec<String>),
    /// Names and texts, in the order given.
    Map(Vec<(String, String)>),
    /// Things with keys of their own.
    Items(Vec<Item>),
}

/// Valid values of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// An integer in a range, both ends included.
    Int(u64, u64),
    /// A power of two in a range, both ends included, or 0 for automatic.
    PowerOfTwoOrAuto(u64, u64),
    /// An integer in a range, both ends included, or 0 for automatic.
    IntOrAuto(u64, u64),
    /// A share of one CPU, or `auto`.
    CpuShare,
    /// An integer from 1 up that divides this one without remainder.
    DivisorOf(u64),
    /// One of these words.
    Word(&'static [&'static str]),
    /// Where the server listens: `unix:/PATH` or `IP:PORT`.
    Listen,
    /// A loopback `IP:PORT`, or `null`.
    LoopbackOrNull,
    /// A loopback `IP:PORT` or `IP`, which then means this port, or `null`.
    PeerOrNull(u16),
    /// Permission bits in octal.
    Mode,
    /// A user group by name or number, or `null`.
    GroupOrNull,
    /// `IP:PORT`.
    Address,
    /// `IP:PORT`, or `null`.
    AddressOrNull,
    /// An absolute path.
    Path,
    /// An absolute path, or `null`.
    PathOrNull,
    /// A line of text of at most this many bytes.
    Text(usize),
    /// Names of labels, at most this many; `,` between them outside of files.
    Names(usize),
    /// Names of labels as other programs give them, at most this many; `,` between them outside of
    /// files.
    ForeignNames(usize),
    /// `auto`, and `KIND:/PATH` with one of these kinds, at most this many in all; `,` between them
    /// outside of files.
    Sources(usize, &'static [&'static str]),
    /// URLs of servers, `http://` or `https://`, at most this many; `,` between them outside of
    /// files.
    Urls(usize),
    /// Events, each by its name or what it starts with and `*`, at most this many; `,` between them
    /// outside of files.
    Events(usize),
    /// Selectors of labels, at most this many, each of at most a KiB; `;` between them outside of
    /// files. What they say is checked by whoever has the key.
    Selectors(usize),
    /// Absolute paths, at most this many; `:` between them outside of files.
    Paths(usize),
    /// Some of these words; `,` between them outside of files.
    Words(&'static [&'static str]),
    /// Labels of the host, at most this many, by none of these names; `a=b,c=d` outside of files.
    Labels(usize, &'static [&'static str]),
    /// An identity of printable characters without spaces, at most this many bytes, or `null`.
    IdOrNull(usize),
    /// A time in seconds, minutes, hours or days, in a range of seconds, both ends included.
    Duration(u64, u64),
    /// A number that is not negative, with at most nine digits before and after the point.
    Decimal,
    /// Things with keys of their own.
    Items(&'static Items),
}

impl Kind {
    /// True when `value` may stand; false when it is of the wrong type or out of range.
    pub fn admits(&self, value: &Value) -> bool {
        match (self, value) {
            (Kind::Bool, Value::Bool(_)) => true,
            (Kind::Int(min, max), Value::Int(n)) => (min..=max).contains(&n),
            (Kind::PowerOfTwoOrAuto(min, max), Value::Int(n)) => {
                *n == 0 || (min..=max).contains(&n) && n.is_power_of_two()
            }
            (Kind::IntOrAuto(min, max), Value::Int(n)) => *n == 0 || (min..=max).contains(&n),
            (Kind::CpuShare, Value::Text(text)) => CpuShare::parse(text).is_some(),
            (Kind::DivisorOf(whole), Value::Int(n)) => *n > 0 && whole.is_multiple_of(*n),
            (Kind::Word(words), Value::Text(text)) => words.contains(&text.as_str()),
            (Kind::Listen, Value::Text(text)) => Listen::parse(text).is_some(),
            (Kind::LoopbackOrNull, Value::Text(text)) => {
                socket_address(text).is_some_and(|address| address.ip().is_loopback())
            }
            (Kind::PeerOrNull(port), Value::Text(text)) => {
                peer_address(text, *port).is_some_and(|address| address.ip().is_loopback())
            }
            (Kind::Mode, Value::Text(text)) => SocketMode::parse(text).is_some(),
            (Kind::GroupOrNull, Value::Text(text)) => is_group(text),
            (Kind::Address | Kind::AddressOrNull, Value::Text(text)) => {
                socket_address(text).is_some()
            }
            (Kind::Path | Kind::PathOrNull, Value::Text(text)) => is_path(text),
            (Kind::Text(max), Value::Text(text)) => is_line(text, *max),
            (Kind::Names(max), Value::List(list)) => {
                list.len() <= *max && list.iter().all(|name| is_name(name))
            }
            (Kind::ForeignNames(max), Value::List(list)) => {
                list.len() <= *max && list.iter().all(|name| is_foreign_name(name))
            }
            (Kind::Sources(max, kinds), Value::List(list)) => {
                list.len() <= *max && list.iter().all(|source| is_source(source, kinds))
            }
            (Kind::Urls(max), Value::List(list)) => {
                list.len() <= *max && list.iter().all(|url| is_url(url))
            }
            (Kind::Events(max), Value::List(list)) => {
                list.len() <= *max && list.iter().all(|event| is_event(event))
            }
            (Kind::Selectors(max), Value::List(list)) => {
                list.len() <= *max && list.iter().all(|text| is_line(text, SELECTOR_LEN_MAX))
            }
            (Kind::Paths(max), Value::List(list)) => {
                list.len() <= *max && list.iter().all(|path| is_path(path))
            }
            (Kind::Words(words), Value::List(list)) => {
                let known = |word: &String| words.contains(&word.as_str());
                list.iter().all(known) && list.len() <= words.len()
            }
            (Kind::Labels(max, taken), Value::Map(labels)) => {
                let each = |(name, value): &(String, String)| is_host_label(name, value, taken);
                labels.len() <= *max && labels.iter().all(each)
            }
            (Kind::IdOrNull(max), Value::Text(text)) => {
                (1..=*max).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
            }
            (Kind::Duration(min, max), Value::Text(text)) => {
                parse_seconds(text).is_some_and(|seconds| (*min..=*max).contains(&seconds))
            }
            (Kind::Decimal, Value::Text(text)) => is_decimal(text),
            (Kind::Items(items), Value::Items(list)) => items.admit(list),
            (
                Kind::LoopbackOrNull
                | Kind::PeerOrNull(_)
                | Kind::GroupOrNull
                | Kind::AddressOrNull
                | Kind::PathOrNull
                | Kind::IdOrNull(_),
                Value::Null,
            ) => true,
            _ => false,
        }
    }

    /// Says which values are allowed: `a whole number from 1 to 9999`.
    pub fn expected(&self) -> String {
        match self {
            Kind::Bool => "true or false".to_owned(),
            Kind::Int(min, max) => format!("a whole number from {min} to {max}"),
            Kind::PowerOfTwoOrAuto(min, max) => {
                format!("a power of two from {min} to {max}, or 0 for automatic")
            }
            Kind::IntOrAuto(min, max) => {
                format!("a whole number from {min} to {max}, or 0 for automatic")
            }
            Kind::CpuShare => {
                "auto, or a percentage from 0.05% to 10000% with at most two decimals".to_owned()
            }
            Kind::DivisorOf(whole) => {
                let divisors: Vec<String> = (1..=*whole)
                    .filter(|n| whole.is_multiple_of(*n))
                    .map(|n| n.to_string())
                    .collect();
                format!("one of {}", divisors.join(", "))
            }
            Kind::Word(words) => words.join(" or "),
            Kind::Listen => {
                format!("unix:/PATH (at most {UNIX_PATH_MAX} bytes) or IP:PORT")
            }
            Kind::LoopbackOrNull => "IP:PORT with a loopback address, or null".to_owned(),
            Kind::PeerOrNull(port) => {
                format!("IP:PORT with a loopback address (default port {port}), or null")
            }
            Kind::Mode => {
                "octal permissions in quotes from \"0600\" to \"0777\", owner read and write \
                 included"
                    .to_owned()
            }
            Kind::GroupOrNull => "the name or number of a group, or null".to_owned(),
            Kind::Address => "IP:PORT".to_owned(),
            Kind::AddressOrNull => "IP:PORT, or null".to_owned(),
            Kind::Path => "an absolute path".to_owned(),
            Kind::PathOrNull => "an absolute path, or null".to_owned(),
            Kind::Text(max) => format!("a line of 1 to {max} bytes"),
            Kind::Names(max) => {
                format!("a list of at most {max} names of letters, digits, `_`, `.`, `-` and `/`")
            }
            Kind::ForeignNames(max) => format!(
                "a list of at most {max} names of at most 112 letters, digits, `_`, `.`, `-` and `/`"
            ),
            Kind::Sources(max, kinds) => format!(
                "a list of at most {max} of auto and KIND:/PATH, where KIND is {}",
                kinds.join(", ")
            ),
            Kind::Urls(max) => format!(
                "a list of at most {max} of http://HOST[:PORT][/PATH] and https://HOST[:PORT][/PATH]"
            ),
            Kind::Events(max) => format!(
                "a list of at most {max} names of events; a name that ends with `*` matches all \
                 that start with it"
            ),
            Kind::Selectors(max) => {
                format!("a list of at most {max} selectors such as unit=\"vault.service\"")
            }
            Kind::Paths(max) => format!("a list of at most {max} absolute paths"),
            Kind::Words(words) => format!("a list of {}", words.join(", ")),
            Kind::Labels(max, _) => format!(
                "a map of at most {max} labels: names of lower-case letters, digits and _ that no \
                 sample has by itself, values of 1 to {LABEL_VALUE_MAX} bytes"
            ),
            Kind::IdOrNull(max) => {
                format!("1 to {max} printable characters without spaces, or null")
            }
            Kind::Duration(min, max) => format!(
                "a time from {} to {}, such as 30s, 5m or 2h",
                show_seconds(*min),
                show_seconds(*max)
            ),
            Kind::Decimal => "a number such as 0.5 or 40".to_owned(),
            Kind::Items(items) => format!("a list of at most {} {}s", items.max, items.what),
        }
    }

    /// Reads a value from a variable or flag. What it returns may still not be admitted.
    pub fn read(&self, text: &str) -> Value {
        // As files have lists, and as this program shows them.
        let text = match self {
            Kind::Names(_)
            | Kind::ForeignNames(_)
            | Kind::Sources(..)
            | Kind::Urls(_)
            | Kind::Events(_)
            | Kind::Words(_) => text
                .strip_prefix('[')
                .and_then(|inner| inner.strip_suffix(']'))
                .map_or(text, str::trim),
            _ => text,
        };
        match self {
            Kind::Bool => match text {
                "true" => Value::Bool(true),
                "false" => Value::Bool(false),
                _ => Value::Text(text.to_owned()),
            },
            Kind::Int(..)
            | Kind::IntOrAuto(..)
            | Kind::PowerOfTwoOrAuto(..)
            | Kind::DivisorOf(_) => text
                .parse()
                .map_or_else(|_| Value::Text(text.to_owned()), Value::Int),
            Kind::LoopbackOrNull
            | Kind::PeerOrNull(_)
            | Kind::GroupOrNull
            | Kind::AddressOrNull
            | Kind::PathOrNull
            | Kind::IdOrNull(_)
                if text.is_empty() || text == "null" =>
            {
                Value::Null
            }
            Kind::Paths(_)
            | Kind::Selectors(_)
            | Kind::Names(_)
            | Kind::ForeignNames(_)
            | Kind::Sources(..)
            | Kind::Urls(_)
            | Kind::Events(_)
                if text.is_empty() =>
            {
                Value::List(Vec::new())
            }
            Kind::Names(_)
            | Kind::ForeignNames(_)
            | Kind::Sources(..)
            | Kind::Urls(_)
            | Kind::Events(_) => {
                Value::List(text.split(',').map(|name| name.trim().to_owned()).collect())
            }
            Kind::Selectors(_) => {
                Value::List(text.split(';').map(|one| one.trim().to_owned()).collect())
            }
            Kind::Paths(_) => Value::List(text.split(':').map(str::to_owned).collect()),
            Kind::Words(_) if text.is_empty() => Value::List(Vec::new()),
            Kind::Words(_) => {
                let words = text.split(',').map(|word| word.trim().to_owned());
                Value::List(words.collect())
            }
            Kind::Labels(..) if text.is_empty() => Value::Map(Vec::new()),
            Kind::Labels(..) => {
                let pair = |text: &str| {
                    let (name, value) = text.split_once('=')?;
                    Some((name.trim().to_owned(), value.trim().to_owned()))
                };
                let labels: Option<Vec<_>> = text.split(',').map(pair).collect();
                labels.map_or_else(|| Value::Text(text.to_owned()), Value::Map)
            }
            _ => Value::Text(text.to_owned()),
        }
    }
}

impl std::fmt::Display for Value {
    /// Writes it as YAML.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Null => f.write_str("null"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::Int(value) => write!(f, "{value}"),
            // Digits in quotes stay text: an octal mode.
            Value::Text(text) if text.bytes().all(|b| b.is_ascii_digit()) => {
                write!(f, "\"{text}\"")
            }
            Value::Text(text) => f.write_str(text),
            Value::List(list) => {
                let each: Vec<String> = list.iter().map(|one| flow(one)).collect();
                write!(f, "[{}]", each.join(", "))
            }
            Value::Map(pairs) => {
                let pairs: Vec<String> = pairs.iter().map(|(k, v)| format!("{k}: {v}")).collect();
                write!(f, "{{{}}}", pairs.join(", "))
            }
            Value::Items(list) => {
                let pair = |(name, value): &(String, Value)| format!("{name}: {value}");
                let item = |item: &Item| {
                    let pairs: Vec<String> = item.iter().map(pair).collect();
                    format!("{{{}}}", pairs.join(", "))
                };
                let items: Vec<String> = list.iter().map(item).collect();
                write!(f, "[{}]", items.join(", "))
            }
        }
    }
}

/// One text of a list between brackets, in quotes where YAML would take it for something else.
fn flow(text: &str) -> String {
    match text.chars().any(|c| ",\"'{}[]#`".contains(c)) {
        true => format!("'{}'", text.replace('\'', "''")),
        false => text.to_owned(),
    }
}

/// Units of times, the longest first.
const TIME_UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];

/// Reads `30s`, `5m`, `2h`, `1d`. Unit: seconds.
pub fn parse_seconds(text: &str) -> Option<u64> {
    let (unit, word) = TIME_UNITS.iter().find(|(_, word)| text.ends_with(word))?;
    let digits = text.strip_suffix(word)?;
    let plain = (1..=9).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    plain
        .then(|| digits.parse::<u64>().ok())??
        .checked_mul(*unit)
}

/// Writes a time as [`parse_seconds`] reads it, in the largest unit without a fraction.
pub fn show_seconds(seconds: u64) -> String {
    let whole = |(unit, _): &&(u64, &str)| seconds > 0 && seconds.is_multiple_of(*unit);
    let (unit, word) = TIME_UNITS.iter().find(whole).unwrap_or(&(1, "s"));
    format!("{}{word}", seconds / unit)
}

fn is_decimal(text: &str) -> bool {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits =
        |text: &str| (1..=9).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    digits(whole) && digits(part)
}

/// Longest value shown in an error. Unit: characters.
const SHOWN_MAX: usize = 60;

/// Longest selector. Unit: bytes.
const SELECTOR_LEN_MAX: usize = 1024;

/// Text from outside made fit for a message: control characters escaped, cut when long.
pub fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_MAX).flat_map(escape).collect();
    if text.chars().nth(SHOWN_MAX).is_some() {
        shown.push('…');
    }
    shown
}

fn escape(c: char) -> impl Iterator<Item = char> {
    let plain = !c.is_control();
    plain
        .then_some(c)
        .into_iter()
        .chain((!plain).then(|| c.escape_default()).into_iter().flatten())
}

/// Longest path of a unix socket: `sun_path` has 108 bytes, the last of them NUL (unix(7)).
const UNIX_PATH_MAX: usize = 107;

/// Where the server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A unix socket.
    Unix(PathBuf),
    /// A TCP port.
    Tcp(SocketAddr),
}

impl Listen {
    /// Reads `unix:/PATH` or `IP:PORT` (`localhost:PORT` too).
    pub fn parse(text: &str) -> Option<Listen> {
        match text.strip_prefix("unix:") {
            Some(path) if is_path(path) && path.len() <= UNIX_PATH_MAX => {
                Some(Listen::Unix(PathBuf::from(path)))
            }
            Some(_) => None,
            None => socket_address(text).map(Listen::Tcp),
        }
    }
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
            Listen::Tcp(address) => write!(f, "{address}"),
        }
    }
}

impl Serialize for Listen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Permission bits of the unix socket. The owner can always read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketMode(pub u32);

impl SocketMode {
    /// Reads `0660` or `660`.
    pub fn parse(text: &str) -> Option<SocketMode> {
        let digits = (3..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        let mode = digits
            .then(|| u32::from_str_radix(text, 8).ok())
            .flatten()?;
        (mode <= 0o777 && mode & 0o600 == 0o600).then_some(SocketMode(mode))
    }
}

impl std::fmt::Display for SocketMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl Serialize for SocketMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A share of one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuShare {
    /// By the number of CPUs.
    Auto,
    /// Hundredths of a percent.
    Hundredths(u32),
}

impl CpuShare {
    /// Smallest share: below it a daemon that does nothing but wake up once a second is over. Unit:
    /// hundredths of a percent.
    const MIN: u32 = 5;
    /// Largest share: a hundred CPUs, which is no limit at all.
    const MAX: u32 = 1_000_000;

    /// Reads `auto`, `1%`, `0.5 %`.
    pub fn parse(text: &str) -> Option<CpuShare> {
        if text == "auto" {
            return Some(CpuShare::Auto);
        }
        let number = text.strip_suffix('%')?.trim_end();
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str, most: usize| {
            let plain = (1..=most).contains(&text.len());
            plain && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !digits(whole, 5) || !digits(part, 2) {
            return None;
        }
        let part: u32 = format!("{part:0<2}").parse().ok()?;
        let share = whole.parse::<u32>().ok()? * 100 + part;
        (CpuShare::MIN..=CpuShare::MAX)
            .contains(&share)
            .then_some(CpuShare::Hundredths(share))
    }
}

impl std::fmt::Display for CpuShare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CpuShare::Auto => f.write_str("auto"),
            CpuShare::Hundredths(share) => match (share / 100, share % 100) {
                (whole, 0) => write!(f, "{whole}%"),
                (whole, part) if part % 10 == 0 => write!(f, "{whole}.{}%", part / 10),
                (whole, part) => write!(f, "{whole}.{part:02}%"),
            },
        }
    }
}

impl Serialize for CpuShare {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reads `IP:PORT`. Names are not looked up, `localhost` apart: what a name means may change, and
/// the rules for addresses beyond loopback must hold for what is bound.
pub fn socket_address(text: &str) -> Option<SocketAddr> {
    match text.strip_prefix("localhost:") {
        Some(port) => Some(SocketAddr::new(
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            port.parse().ok()?,
        )),
        None => text.parse().ok(),
    }
}

/// Reads `IP:PORT`, or `IP` alone, which then means `port`. IPv6 literals may stand in brackets.
pub fn peer_address(text: &str, port: u16) -> Option<SocketAddr> {
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let ip = match bare {
        Some(literal) => literal.parse().ok().map(IpAddr::V6),
        None if text == "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        None => text.parse().ok(),
    };
    let address = ip.map(|ip| SocketAddr::new(ip, port));
    address
        .or_else(|| socket_address(text))
        .filter(|address| address.port() != 0)
}

/// Longest value of a label of the host. Unit: bytes.
const LABEL_VALUE_MAX: usize = 256;

/// Longest name of a label of the host. Unit: bytes.
const LABEL_NAME_MAX: usize = 64;

/// True for a label that may be given to all samples of a host: none that samples have themselves.
fn is_host_label(name: &str, value: &str, taken: &[&str]) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    (1..=LABEL_NAME_MAX).contains(&name.len())
        && name.bytes().all(plain)
        && !name.as_bytes()[0].is_ascii_digit()
        && !taken.contains(&name)
        && (1..=LABEL_VALUE_MAX).contains(&value.len())
        && !value.chars().any(char::is_control)
}

fn is_path(text: &str) -> bool {
    text.starts_with('/') && !text.contains('\0')
}

fn is_line(text: &str, bytes_max: usize) -> bool {
    (1..=bytes_max).contains(&text.len()) && !text.chars().any(char::is_control)
}

fn is_name(text: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || b"_.-/".contains(&b);
    (1..=128).contains(&text.len()) && text.bytes().all(known)
}

/// With what comes to stand before it, it is still no longer than a name of ours.
fn is_foreign_name(text: &str) -> bool {
    text.len() <= 112 && is_name(text)
}

fn is_source(text: &str, kinds: &[&str]) -> bool {
    // What a flow sequence of YAML would take for its own is in no such path.
    let plain = |c: char| !c.is_control() && !c.is_whitespace() && !",[]{}#\"'".contains(c);
    let named = |(kind, path): (&str, &str)| kinds.contains(&kind) && is_path(path);
    text == "auto" || (text.split_once(':').is_some_and(named) && text.chars().all(plain))
}

fn is_event(text: &str) -> bool {
    // What a flow sequence of YAML would take for its own is in no name of an event; a `*` first
    // would be an alias there, and all events.
    let plain = |c: char| c.is_ascii_graphic() && !",[]{}#\"'".contains(c);
    let name = text.strip_suffix('*').unwrap_or(text);
    !name.is_empty() && name.len() <= 4096 && name.chars().all(plain) && !name.contains('*')
}

fn is_url(text: &str) -> bool {
    let rest = ["http://", "https://"]
        .iter()
        .find_map(|scheme| text.strip_prefix(scheme));
    // Neither a user's name, nor a query, nor what YAML would take for its own.
    let plain = |byte: u8| byte.is_ascii_graphic() && !b",[]{}#\"'?@<>\\^`|".contains(&byte);
    let has_host = |rest: &str| !rest.is_empty() && !rest.starts_with(['/', ':']);
    rest.is_some_and(|rest| has_host(rest) && rest.bytes().all(plain)) && text.len() <= 1024
}

fn is_group(text: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    (1..=32).contains(&text.len()) && text.bytes().all(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_back() {
        for (text, seconds) in [
            ("0s", 0),
            ("90s", 90),
            ("5m", 300),
            ("2h", 7200),
            ("1d", 86_400),
        ] {
            assert_eq!(parse_seconds(text), Some(seconds));
            assert_eq!(show_seconds(seconds), text);
        }
        for text in [
            "",
            "s",
            "5",
            "-5s",
            "5 s",
            "1.5h",
            "9999999999s",
            "5ms",
            "∞s",
        ] {
            assert_eq!(parse_seconds(text), None, "{text}");
        }
    }

    #[test]
    fn lists_are_read_as_files_have_them_and_without_brackets() {
        let list =
            |names: &[&str]| Value::List(names.iter().map(|name| name.to_string()).collect());
        for (text, expected) in [
            ("a,b", list(&["a", "b"])),
            ("[a, b]", list(&["a", "b"])),
            ("[]", list(&[])),
            ("", list(&[])),
        ] {
            assert_eq!(Kind::ForeignNames(5).read(text), expected, "{text}");
        }
    }

    #[test]
    fn urls_are_of_servers() {
        let kind = Kind::Urls(2);
        let list =
            |texts: &[&str]| Value::List(texts.iter().map(|one| (*one).to_owned()).collect());
        assert_eq!(
            kind.read("http://a, https://b/x"),
            list(&["http://a", "https://b/x"])
        );
        assert_eq!(kind.read(""), list(&[]));
        for good in [
            "http://a",
            "https://debuginfod.example.org:8002/x",
            "http://127.0.0.1:8002",
        ] {
            assert!(kind.admits(&list(&[good])), "{good}");
        }
        for wrong in [
            "",
            "ftp://a",
            "http://",
            "http:///x",
            "a.b",
            "http://a b",
            "http://u@h",
            "http://a?b",
        ] {
            assert!(!kind.admits(&list(&[wrong])), "{wrong}");
        }
        assert!(!kind.admits(&list(&["http://a", "http://b", "http://c"])));
    }

    #[test]
    fn the_port_of_a_peer_may_be_left_out() {
        let read = |text| peer_address(text, 7600).map(|address| address.to_string());
        for (text, expected) in [
            ("127.0.0.1", "127.0.0.1:7600"),
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("localhost", "127.0.0.1:7600"),
            ("localhost:9", "127.0.0.1:9"),
            ("::1", "[::1]:7600"),
            ("[::1]", "[::1]:7600"),
            ("[::1]:5", "[::1]:5"),
        ] {
            assert_eq!(read(text).as_deref(), Some(expected), "{text}");
        }
        for text in [
            "",
            ":",
            ":7600",
            "127.0.0.1:",
            "127.0.0.1:0",
            "[127.0.0.1]",
            "[::1",
            "::1]",
            "[[::1]]",
            "[::1]:",
            "a-name",
            "http://127.0.0.1",
            "127.0.0.1:65536",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
