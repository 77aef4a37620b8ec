"""What people look at: figures."""
