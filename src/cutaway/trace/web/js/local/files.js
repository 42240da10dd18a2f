/**
 * The files of a model in a page's folder: described in one, weights in parts whose hashes it names.
 *
 * Knows how they are fetched, kept by the browser and checked; not what is in them.
 */

/**
 * @typedef {{name: string, bytes: number, sha256: string}} Part
 * @typedef {(done: number, all: number) => void} Progress of bytes
 */

const CACHE = "cutaway-weights";

/** @param {string} folder @param {string} name @returns {Promise<Response>} */
export async function fetchFile(folder, name) {
  let answer;
  try {
    answer = await fetch(`${folder}/${name}`);
  } catch {
    throw new Error(`${name} cannot be fetched: is there a connection?`);
  }
  if (!answer.ok) throw new Error(`${name} cannot be fetched: the host answered ${answer.status}`);
  return answer;
}

/**
 * Fill `into` with the parts, each checked by its hash. Parts that were fetched before come from the browser's cache.
 * @param {string} folder @param {Part[]} parts @param {Uint8Array} into @param {Progress} progress
 */
export async function fill(folder, parts, into, progress) {
  const cache = await caches?.open(CACHE).catch(() => null);
  let at = 0;
  for (const part of parts) {
    into.set(await fetchPart(folder, part, cache ?? null), at);
    progress((at += part.bytes), into.length);
  }
}

/** @param {string} folder @param {Part} part @param {Cache | null} cache @returns {Promise<Uint8Array>} */
async function fetchPart(folder, part, cache) {
  const address = new URL(`${folder}/${part.name}?${part.sha256.slice(0, 16)}`, location.href).href;
  const cachedCopy = await cache?.match(address);
  if (cachedCopy) {
    const bytes = new Uint8Array(await cachedCopy.arrayBuffer());
    if (await isWhole(bytes, part)) return bytes;
    await cache?.delete(address); // the browser's own copy was damaged
  }
  const answer = await fetchFile(folder, part.name), copy = answer.clone();
  const bytes = new Uint8Array(await answer.arrayBuffer());
  if (!(await isWhole(bytes, part))) throw new Error(`${part.name} was damaged on its way, or on its host: export the page again`);
  await cache?.put(address, copy).catch(() => {}); // where the browser has no more room, it is fetched again
  return bytes;
}

/** @param {Uint8Array<ArrayBuffer>} bytes @param {Part} part */
async function isWhole(bytes, part) {
  if (bytes.length !== part.bytes) return false;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("") === part.sha256;
}
