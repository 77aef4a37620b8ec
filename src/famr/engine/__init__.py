"""How passes and steps are computed; `base` describes the interface and lists the engines."""
