"""Scans and exscans of long values along trees packed into the links of hosts that are alike, in slices."""
