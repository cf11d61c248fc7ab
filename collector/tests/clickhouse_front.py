"""ClickHouse's HTTP interface for tests: the real engine from PyPI's `chdb`, in this process.

Called as `clickhouse_front.py DATA_DIR [PORT [remove|keep [config=FILE] [tls=CERT_AND_KEY,CA]]]`; prints `port N version V` once it listens (on
loopback only), and ends when its standard input does; with `remove` it takes its data along. What it does of the interface: statements in the body, the URL or a multipart form; parameters;
settings; inserts of RowBinaryWithNamesAndTypes, packed by LZ4 where the URL says so (checksums are not looked at); errors with their codes. One statement runs at a time.

`config` is a configuration of the engine: macros, remote_servers, storage policies, users. With `tls` it
answers those alone whose certificate the CA signed.

As a shard of a cluster (`/front/peers` names all of them) it stands for what one process does not have: a
Keeper and the queue of statements in it. What comes ON CLUSTER is done here and by every peer that listens, at once;
replicated engines become those of one server. A peer that does not listen never does it.

Beside it, for tests: `/front/log?database=D` has a line for each statement in D, see `Statement`; `/front/rules?database=D`
takes lines of `error REGEX TEXT` (statements that match are answered by TEXT), `slow REGEX SECONDS` (they are done after
that time), `skip REGEX` (statements of a peer that match are not done) and `setting NAME VALUE` (what the server's profile
would have), parted by tabs, in place of those before.
"""

import collections
import dataclasses
import http.server
import os
import re
import shutil
import signal
import ssl
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from chdb import session

# What of the URL is no setting of the engine.
NOT_SETTINGS = {"query", "database", "default_format", "query_id", "user", "password", "decompress", "front"}

# Small statements are cheapest on one thread and without compiled expressions. Settings that come
# with a statement override these.
SESSION_SETTINGS = {
    "max_threads": 1,
    "max_insert_threads": 1,
    "compile_expressions": 0,
    "compile_aggregate_expressions": 0,
    "compile_sort_description": 0,
}

# As the server's `http_max_field_value_size`.
FIELD_LEN_MAX = 128 << 10

# Statements of one database that are remembered, and how much of each.
STATEMENTS_MAX = 10_000
STATEMENT_LEN_MAX = 4_000


ON_CLUSTER = re.compile(r" ON CLUSTER '\w+'")
REPLICATED = re.compile(r"Replicated(\w*MergeTree)\('[^']*', '[^']*'(?:, )?")


def of_one_server(sql):
    """A statement for a cluster, as one server without a Keeper does it."""
    sql = REPLICATED.sub(r"\1(", ON_CLUSTER.sub("", sql))
    return sql.replace(" replicated_deduplication", " non_replicated_deduplication")


@dataclasses.dataclass
class Statement:
    """A statement that was done or refused, as it stands in the log: fields parted by tabs."""

    start_ms: int
    end_ms: int
    # Rows that the engine read from tables; of those that are inserted nothing is said.
    rows_read: int
    # Rows of an insert as they were sent, and unpacked.
    sent_bytes: int
    unpacked_bytes: int
    settings: str
    sql: str

    def line(self):
        return "\t".join(" ".join(str(field).split()) for field in dataclasses.astuple(self))


def now_ms():
    return int(time.monotonic() * 1000)


class Database:
    """What is special about a database, and what was asked of it."""

    def __init__(self):
        self.errors, self.settings, self.slow, self.skipped = [], {}, [], []
        self.statements = collections.deque(maxlen=STATEMENTS_MAX)

    def rule(self, text):
        errors, settings, slow, skipped = [], {}, [], []
        for line in text.splitlines():
            kind, name, value = line.split("\t")
            if kind == "error":
                errors.append((re.compile(name, re.DOTALL), value))
            elif kind == "slow":
                slow.append((re.compile(name, re.DOTALL), float(value)))
            elif kind == "skip":
                skipped.append(re.compile(name, re.DOTALL))
            else:
                settings[name] = value
        self.errors, self.settings, self.slow, self.skipped = errors, settings, slow, skipped

    def wait(self, statement):
        for pattern, seconds in self.slow:
            if pattern.search(statement.sql):
                time.sleep(seconds)

    def fail(self, statement):
        for pattern, text in self.errors:
            if pattern.search(f"{statement.settings} {statement.sql}"):
                raise ValueError(text)


def unpacked(body):
    """The content of ClickHouse's packed blocks: a checksum of 16 bytes, a method, sizes with and without packing."""
    parts, at = [], 0
    while at < len(body):
        if body[at + 16] != 0x82:
            raise ValueError("Code: 432. DB::Exception: unknown codec of a packed block")
        size = int.from_bytes(body[at + 17 : at + 21], "little")
        length = int.from_bytes(body[at + 21 : at + 25], "little")
        part = lz4(body[at + 25 : at + 16 + size])
        if len(part) != length:
            raise ValueError("Code: 271. DB::Exception: a packed block has another length than it says")
        parts.append(part)
        at += 16 + size
    return b"".join(parts)


def lz4(data):
    """One block of LZ4."""
    out, at = bytearray(), 0

    def count(short):
        """A number of four bits, and what is added to the largest of them."""
        nonlocal at
        total, more = short, short == 15
        while more:
            total += data[at]
            more = data[at] == 255
            at += 1
        return total

    while at < len(data):
        token = data[at]
        at += 1
        literals = count(token >> 4)
        out += data[at : at + literals]
        at += literals
        if at >= len(data):
            break
        offset = int.from_bytes(data[at : at + 2], "little")
        at += 2
        length = count(token & 15) + 4
        # A match may reach into itself: what it repeats is then as long as the offset.
        again = bytes(out[-offset:])[:length]
        out += (again * (length // len(again) + 1))[:length]
    return bytes(out)


class Engine:
    """The one session of a data directory. Settings last for one statement."""

    def __init__(self, directory, config=None):
        self.session = session.Session(f"{directory}?config-file={config}" if config else directory)
        self.lock = threading.Lock()
        # What the last statement left behind: most statements need the same, and each change costs
        # as much as a small statement.
        self.database, self.settings = None, {}
        for name, value in SESSION_SETTINGS.items():
            self.run(f"SET {name} = {value}", "TSV")
        self.version = self.run("SELECT version()", "TSV")[0].decode().strip()

    def run(self, sql, form, params=None):
        """The answer, and how many rows of tables were read for it."""
        result = self.session.query(sql, form, params=params or {})
        if result is None:
            return b"", 0
        data = result.bytes()
        return bytes(data) if data is not None else b"", result.storage_rows_read()

    def statement(self, sql, form, database, settings, params):
        with self.lock:
            self.use(database, settings)
            return self.run(sql, form, params)

    def use(self, database, settings):
        """Has the session be in that database, with those settings and no others."""
        # `default` has all that a statement outside of a database needs.
        database = database or "default"
        if database != self.database:
            self.run(f"USE `{database}`", "TSV")
            self.database = database
        for name in [name for name in self.settings if name not in settings]:
            self.run(f"SET {name} = {SESSION_SETTINGS.get(name, 'DEFAULT')}", "TSV")
            del self.settings[name]
        for name, value in settings.items():
            if self.settings.get(name) != value:
                self.run(f"SET {name} = '{value}'", "TSV")
                self.settings[name] = value

    def insert(self, sql, data, database, settings):
        """`INSERT INTO table(columns) FORMAT F` with the rows beside it."""
        head, form = sql.rsplit("FORMAT", 1)
        target = head.split("INTO", 1)[1].strip()
        table, _, columns = target.partition("(")
        columns = columns.rpartition(")")[0] or "*"
        with tempfile.NamedTemporaryFile(suffix=".rows") as file:
            file.write(data)
            file.flush()
            names = "" if columns == "*" else f"({columns})"
            source = f"file('{file.name}', '{form.strip()}')"
            sql = f"INSERT INTO {table} {names} SELECT {columns} FROM {source}"
            return self.statement(sql, "TSV", database, settings, {})


class Front(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Each answer is one write, sent at once: written in two parts, the second waits for the
    # client's delayed acknowledgement of the first.
    wbufsize = 1 << 16
    disable_nagle_algorithm = True
    databases = {}
    # Addresses of all shards but this one.
    peers = []

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path.startswith("/ping"):
            return self.answer(200, b"Ok.\n")
        return self.answer(405, b"only POST\n")

    def do_POST(self):
        url = urllib.parse.urlparse(self.path)
        options = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        body = self.body()
        if url.path.startswith("/front/"):
            return self.front(url.path, self.database(options.get("database")), body.decode())
        sent = len(body)
        sql = options.get("query", "")
        try:
            if options.get("decompress") == "1":
                body = unpacked(body)
            fields = self.fields(body)
        except ValueError as error:
            return self.answer(500, str(error).encode())
        if fields is not None:
            options.update(fields)
            sql, body = fields.get("query", sql), b""
        params = {k[6:]: v for k, v in options.items() if k.startswith("param_")}
        settings = {
            k: v for k, v in options.items() if k not in NOT_SETTINGS and not k.startswith("param_")
        }
        name = options.get("database")
        database = self.database(name)
        is_insert = sql[:6].upper() == "INSERT" and body
        if not is_insert:
            sql, body, sent = sql + body.decode(), b"", 0
        told = " ".join(f"{k}={v}" for k, v in settings.items())
        statement = Statement(now_ms(), 0, 0, sent, len(body), told, sql[:STATEMENT_LEN_MAX])
        if options.get("front") != "unseen":
            database.statements.append(statement)
        settings = database.settings | settings
        try:
            database.fail(statement)
            database.wait(statement)
            if options.get("front") == "peer" and any(p.search(sql) for p in database.skipped):
                return self.answer(200, b"")
            if ON_CLUSTER.search(sql):
                for peer in self.peers if options.get("front") != "peer" else []:
                    self.forward(peer, name, sql)
                sql = of_one_server(sql)
            if is_insert:
                data, _ = self.engine.insert(sql, body, name, settings)
            else:
                form = options.get("default_format", "TabSeparated")
                data, statement.rows_read = self.engine.statement(sql, form, name, settings, params)
            statement.end_ms = now_ms()
            self.answer(200, data)
        except Exception as error:  # noqa: BLE001: the engine's errors have no class of their own
            text = str(error)
            code = text.partition("Code: ")[2].partition(".")[0] or "1001"
            self.answer(500, text.encode(), {"X-ClickHouse-Exception-Code": code})

    def forward(self, peer, database, sql):
        """Has another shard do a statement; one that is away does not."""
        query = urllib.parse.urlencode({"front": "peer", **({"database": database} if database else {})})
        try:
            urllib.request.urlopen(f"{peer}/?{query}", sql.encode()).read()
        except urllib.error.HTTPError as error:
            raise ValueError(error.read().decode()) from error
        except urllib.error.URLError:
            pass

    def database(self, name):
        return self.databases.setdefault(name, Database())

    def front(self, path, database, text):
        """What tests ask of the front itself."""
        if path == "/front/peers":
            Front.peers = text.split()
            return self.answer(200, b"")
        if path == "/front/rules":
            database.rule(text)
            return self.answer(200, b"")
        lines = "".join(statement.line() + "\n" for statement in list(database.statements))
        return self.answer(200, lines.encode())

    def body(self):
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while True:
            size = int(self.rfile.readline().split(b";")[0], 16)
            parts.append(self.rfile.read(size))
            self.rfile.readline()
            if size == 0:
                return b"".join(parts)

    def fields(self, body):
        """The fields of a multipart form; None when it is none."""
        kind, _, rest = self.headers.get("Content-Type", "").partition("boundary=")
        if not kind.startswith("multipart/form-data"):
            return None
        border = b"\r\n--" + rest.strip('"').encode()
        fields = {}
        for part in (b"\r\n" + body).split(border)[1:-1]:
            head, _, value = part.partition(b"\r\n\r\n")
            name = head.partition(b'name="')[2].partition(b'"')[0].decode()
            if len(value) > FIELD_LEN_MAX:
                raise ValueError(f"Code: 1000. DB::Exception: field `{name}` is too long")
            fields[name] = value.decode()
        return fields

    def answer(self, status, data, headers=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128


def main():
    directory = sys.argv[1]
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    options = dict(option.split("=", 1) for option in sys.argv[4:])
    Front.engine = Engine(os.path.join(directory, "engine"), options.get("config"))
    server = Server(("127.0.0.1", port), Front)
    if "tls" in options:
        own, authority = options["tls"].split(",")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(own)
        context.load_verify_locations(authority)
        context.verify_mode = ssl.CERT_REQUIRED
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    print(f"port {server.server_address[1]} version {Front.engine.version}", flush=True)
    remove = directory if sys.argv[3:4] == ["remove"] else None
    # A test run that is interrupted ends its whole process group this way.
    signal.signal(signal.SIGTERM, lambda *_: end(remove))
    threading.Thread(target=end_with_parent, args=[remove], daemon=True).start()
    server.serve_forever()


def end_with_parent(remove):
    """Ends when the test does, however it ends: its end of our standard input closes."""
    sys.stdin.buffer.read()
    end(remove)


def end(remove):
    """Ends this process; what it has in `remove`, if anything, goes with it."""
    if remove:
        shutil.rmtree(remove, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main()
