"""The embedded demo: a simulated prefill/decode fleet, a leak in one of it, and the product at work on it."""
