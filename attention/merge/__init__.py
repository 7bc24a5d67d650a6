"""LOGSUMEXP, the merge of attention partials, per device."""
