"""What is written is whole, synced, ours alone while it is written, and never behind a link."""
