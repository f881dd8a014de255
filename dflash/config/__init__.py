"""Every setting, a module per section: typed, frozen, unknown keys forbidden."""
