/**
 * Saves bytes as files through the browser.
 */

import { el } from "./dom.js";

/** @param {string} name @param {BlobPart} bytes @returns {HTMLAnchorElement} a link that saves them */
export function savingLink(name, bytes) {
  const href = URL.createObjectURL(new Blob([bytes], { type: "application/jsonl" }));
  return el("a", { href, download: name }, name);
}

/** @param {string} name @param {BlobPart} bytes */
export function save(name, bytes) {
  const link = savingLink(name, bytes);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href)); // after the browser has begun the download
}
