"""Models alone, in files of ours and of others."""
