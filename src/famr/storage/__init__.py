"""Output files: written whole or not at all, synced to the disk, locked meanwhile, never written through a link."""
