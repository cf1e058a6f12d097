"""Applications bundled with Holdfast, written with its public API only."""
