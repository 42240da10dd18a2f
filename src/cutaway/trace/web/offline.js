/**
 * Keeps the files of an exported page in the browser, so that it opens without a connection, and isolates the page, as a
 * host's headers would, so that it may have threads. The weights are kept by the page itself (js/local/files.js).
 */

const CACHE = "cutaway-page-NAME", FILES = "FILES";

addEventListener("install", (event) => event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(FILES)).then(() => skipWaiting())));
addEventListener("activate", (event) => event.waitUntil(forget().then(() => clients.claim())));
addEventListener("fetch", (event) => event.respondWith(answer(event.request)));

/** @param {Request} request */
async function answer(request) {
  const response = (await caches.match(request, { ignoreSearch: request.mode === "navigate" })) ?? (await fetch(request));
  const headers = new Headers(response.headers);
  headers.set("cross-origin-opener-policy", "same-origin");
  headers.set("cross-origin-embedder-policy", "require-corp");
  return new Response(response.body, { status: response.status, statusText: response.statusText, headers });
}

/** Delete the files of earlier exports at the same address. */
async function forget() {
  for (const name of await caches.keys()) if (name.startsWith("cutaway-page-") && name !== CACHE) await caches.delete(name);
}
