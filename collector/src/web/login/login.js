// The login of the page. It exchanges a token, a link printed by `agent-ctl page`, or an account at
// an identity provider for a cookie.
"use strict";

const element = (id) => document.getElementById(id);
const once = "#once=";

// The page keeps its state behind the `#`, which a redirect to here carries along.
const onwards = () => {
  const state = location.hash.startsWith(once) ? "" : location.hash;
  location.replace("/" + state);
};

const send = async (path, body) => {
  element("why").textContent = "";
  try {
    const answer = await fetch(path, { method: "POST", body, credentials: "same-origin" });
    if (answer.ok) {
      return true;
    }
    element("why").textContent = await answer.text();
  } catch {
    element("why").textContent = "The collector does not answer.";
  }
  return false;
};

const show = async () => {
  const answer = await fetch("/api/session", { credentials: "same-origin" });
  const is_in = answer.ok;
  if (is_in) {
    const who = await answer.json();
    element("who").textContent = `Logged in as ${who.name} (${who.role}).`;
    element("out").hidden = !who.can_log_out;
  } else {
    element("who").textContent = "";
  }
  element("form").hidden = is_in;
  element("in").hidden = !is_in;
  if (!is_in) {
    element("token").focus();
  }
};

// The way by a provider, where there is one. It comes back to what was asked for.
const offer = async () => {
  const answer = await fetch("/api/login", { credentials: "same-origin" });
  const { provider } = answer.ok ? await answer.json() : {};
  if (provider) {
    element("with").textContent = `Sign in with ${provider}`;
    element("with").href = "/login/oidc?return=" + encodeURIComponent("/" + location.hash);
    element("provider").hidden = false;
  }
};

const log_in = async () => {
  const field = element("token");
  const done = await send("/api/login", "token " + field.value.trim());
  field.value = "";
  if (done) {
    onwards();
  }
};

element("go").addEventListener("click", log_in);
element("token").addEventListener("keydown", (event) => {
  if (event.key === "Enter") {
    log_in();
  }
});
element("out").addEventListener("click", async () => {
  if (await send("/api/logout", "")) {
    show();
  }
});

const start = async () => {
  if (location.hash.startsWith(once)) {
    const link = location.hash.slice(once.length);
    // Not left in the history.
    history.replaceState(null, "", "/login");
    if (await send("/api/login", "link " + link)) {
      location.replace("/");
      return;
    }
  }
  offer().catch(() => undefined);
  show();
};
// A link that is opened where the login is open already changes nothing but what is behind the `#`.
addEventListener("hashchange", () => {
  if (location.hash.startsWith(once)) {
    start();
  }
});
start();
