"""Hedging: what second copies brought, and what they took."""
