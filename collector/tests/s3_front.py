"""An S3 server for tests: PyPI's `moto` in this process, with faults in front of it.

Called as `s3_front.py [PORT]`; prints `port N version V` once it listens (on loopback only), and ends when its
standard input does. Buckets are in memory.

Besides S3: `PUT /front/rules?bucket=B` takes lines of `REGEX ACTION [ARGUMENT [TIMES]]`, parted by tabs, in place of
those before. A request of B whose `METHOD PATH?QUERY` has the expression somewhere gets the first rule that matches and
has times left (no number: always):

    status N    is answered with that status, and nothing is done
    lose        is done, and answered with status 500
    drop        gets no answer: the connection is closed
    slow N      is answered after N seconds
    cut         gets half of its body, then the connection is closed
    flip        gets one other byte in the middle of its body
    spoil       has one other byte in the middle of what it brings
    heedless    is done whatever its conditions
    none        is done

`GET /front/log?bucket=B` has a line for each request of B, answered or not: `METHOD PATH?QUERY RANGE`.
"""

import collections
import io
import re
import signal
import sys
import threading
import time
import urllib.parse

import moto
import moto.s3.models
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

REQUESTS_MAX = 100_000

# By bucket.
rules = collections.defaultdict(list)
requests = collections.defaultdict(lambda: collections.deque(maxlen=REQUESTS_MAX))
lock = threading.Lock()


class Rule:
    def __init__(self, line):
        fields = line.split("\t")
        self.regex = re.compile(fields[0])
        self.action = fields[1]
        self.argument = fields[2] if len(fields) > 2 else ""
        self.times = int(fields[3]) if len(fields) > 3 else None


def rule_of(bucket, request):
    with lock:
        for rule in rules[bucket]:
            if rule.times != 0 and rule.regex.search(request):
                if rule.times is not None:
                    rule.times -= 1
                return rule
    return None


def spoiled(body):
    if not body:
        return body
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]


class Front:
    def __init__(self, s3):
        self.s3 = s3

    def __call__(self, environ, start_response):
        path = environ["PATH_INFO"]
        query = environ.get("QUERY_STRING", "")
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if path.startswith("/front/"):
            return self.own(path, query, body, start_response)
        bucket = path.split("/")[1]
        request = f"{environ['REQUEST_METHOD']} {path}?{query}"
        with lock:
            requests[bucket].append(f"{request} {environ.get('HTTP_RANGE', '-')}")
        rule = rule_of(bucket, request)
        action = rule.action if rule else ""
        if action == "slow":
            time.sleep(float(rule.argument))
        if action == "status":
            code = "AccessDenied" if rule.argument == "403" else "InternalError"
            return self.refuse(rule.argument, code, start_response)
        if action == "drop":
            return self.close(environ, start_response)
        if action == "spoil":
            body = spoiled(body)
        if action == "heedless":
            environ.pop("HTTP_IF_MATCH", None)
            environ.pop("HTTP_IF_NONE_MATCH", None)
        environ["wsgi.input"] = io.BytesIO(body)
        environ["CONTENT_LENGTH"] = str(len(body))
        answered = []
        answer = b"".join(self.s3(environ, lambda *head: answered.append(head)))
        if action == "lose":
            return self.refuse("500", "InternalError", start_response)
        if action == "flip":
            answer = spoiled(answer)
        start_response(*answered[-1][:2])
        if action == "cut":
            return self.half(environ, answer)
        return [answer]

    def own(self, path, query, body, start_response):
        bucket = urllib.parse.parse_qs(query)["bucket"][0]
        text = ""
        with lock:
            if path == "/front/rules":
                rules[bucket] = [Rule(line) for line in body.decode().splitlines()]
            else:
                text = "".join(f"{line}\n" for line in requests[bucket])
        start_response("200 OK", [("Content-Length", str(len(text)))])
        return [text.encode()]

    def refuse(self, status, code, start_response):
        text = f"<Error><Code>{code}</Code><Message>as the test asks</Message></Error>".encode()
        head = [("Content-Type", "application/xml"), ("Content-Length", str(len(text)))]
        start_response(f"{status} {code}", head)
        return [text]

    def close(self, environ, start_response):
        environ["werkzeug.socket"].shutdown(2)
        # Into the closed connection.
        start_response("500 Closed", [])
        return []

    def half(self, environ, answer):
        yield answer[: len(answer) // 2]
        environ["werkzeug.socket"].shutdown(2)


class Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_):
        pass


def main():
    # Parts of tests are small.
    moto.s3.models.S3_UPLOAD_PART_MIN_SIZE = 1
    s3 = DomainDispatcherApplication(create_backend_app)
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    server = make_server("127.0.0.1", port, Front(s3), threaded=True, request_handler=Handler)
    print(f"port {server.port} version {moto.__version__}", flush=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


main()
