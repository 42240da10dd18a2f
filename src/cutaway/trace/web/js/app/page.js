/**
 * The page that runs its own model, from a folder on any host: the served page, with another source.
 */

import "./source.js";
import "./app.js";

// A service worker, so that the page needs no connection.
navigator.serviceWorker?.register(new URL("offline.js", document.baseURI)).catch(() => {});
