// Where the page came from, and with it the collector.

/** Next to the page, so that it works below a path of a reverse proxy. For the page itself. */
export function pageBase(): string {
  return new URL('.', document.baseURI).href.replace(/\/$/, '');
}
