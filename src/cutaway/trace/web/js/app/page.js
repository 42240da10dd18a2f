/**
 * The page that runs its own model, from a folder on any host: the served page, with another source.
 */

import "./source.js";
import "./app.js";

// Without it the page needs a connection.
navigator.serviceWorker?.register(new URL("offline.js", document.baseURI)).catch(() => {});
