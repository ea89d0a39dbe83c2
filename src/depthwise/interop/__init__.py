"""Models that come from, or go to, other libraries."""
