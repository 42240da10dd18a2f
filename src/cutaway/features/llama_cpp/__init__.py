"""Forms of llama.cpp's server: infill, templates, properties, slots, loading by request."""
