/**
 * Keeps the files of an exported page in the browser, so that it opens without a connection. The weights are kept by the
 * page itself (js/local/files.js).
 */

const KEPT = "cutaway-page-NAME", FILES = "FILES";

addEventListener("install", (event) => event.waitUntil(caches.open(KEPT).then((kept) => kept.addAll(FILES)).then(() => skipWaiting())));
addEventListener("activate", (event) => event.waitUntil(forget().then(() => clients.claim())));
addEventListener("fetch", (event) => event.respondWith(caches.match(event.request).then((kept) => kept ?? fetch(event.request))));

/** Those of earlier exports at the same address. */
async function forget() {
  for (const name of await caches.keys()) if (name.startsWith("cutaway-page-") && name !== KEPT) await caches.delete(name);
}
