// Loaded before each test: the page's document, as far as the modules that need none ask for it.

globalThis.document = { querySelector: () => ({ textContent: process.env.CUTAWAY_CATALOGUE }) };
