/**
 * Saves bytes as files through the browser.
 */

import { el } from "./dom.js";

/** @param {string} name @param {BlobPart} bytes @param {string} [type] @returns {HTMLAnchorElement} a link that saves them */
export function savingLink(name, bytes, type = "application/jsonl") {
  const href = URL.createObjectURL(new Blob([bytes], { type }));
  return el("a", { href, download: name }, name);
}

/** @param {string} name @param {BlobPart} bytes @param {string} [type] */
export function save(name, bytes, type) {
  const link = savingLink(name, bytes, type);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href)); // after the browser has begun the download
}
