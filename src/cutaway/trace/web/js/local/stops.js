/**
 * The text of a run's tokens, as far as it is certain: before a stop string, and in whole characters
 * (src/cutaway/engine/stops.py).
 */

export class StoppedText {
  /** @param {string[]} stops */
  constructor(stops) {
    this.stops = [...stops].sort((a, b) => bytesOf(b).length - bytesOf(a).length).map((text) => ({ text, bytes: bytesOf(text) }));
    /** @type {number[]} */
    this.held = [];
    /** @type {string | null} the stop string that was completed */
    this.matched = null;
    this.decoder = new TextDecoder();
  }

  /** @param {Uint8Array} bytes of a token @returns {string} what is certain now */
  push(bytes) {
    for (const byte of bytes) {
      this.held.push(byte);
      const found = this.stops.find((stop) => endsWith(this.held, stop.bytes, stop.bytes.length));
      if (found) {
        this.matched = found.text;
        return this.release(this.held.length - found.bytes.length, 0);
      }
    }
    const begun = Math.max(0, ...this.stops.map(({ bytes: stop }) => longestBegun(this.held, stop)));
    return this.release(this.held.length - begun, begun);
  }

  /** @returns {string} what was held back, now that nothing follows */
  end() {
    return this.release(this.held.length, 0) + this.decoder.decode();
  }

  /** @param {number} count @param {number} keep */
  release(count, keep) {
    const certain = this.held.slice(0, count);
    this.held = keep ? this.held.slice(-keep) : [];
    return this.decoder.decode(Uint8Array.from(certain), { stream: true });
  }
}

/** @param {string} text */
const bytesOf = (text) => new TextEncoder().encode(text);

/** @param {number[]} bytes @param {Uint8Array} needle @param {number} count of its first bytes */
function endsWith(bytes, needle, count) {
  const from = bytes.length - count;
  return from >= 0 && needle.subarray(0, count).every((byte, i) => bytes[from + i] === byte);
}

/** @param {number[]} bytes @param {Uint8Array} needle @returns {number} how many of its first bytes they end with, less than all */
function longestBegun(bytes, needle) {
  for (let count = needle.length - 1; count > 0; count--) if (endsWith(bytes, needle, count)) return count;
  return 0;
}
