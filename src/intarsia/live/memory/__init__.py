"""Memory of this process: who owns it, what it holds of which tensor."""
