"""There is no `headrace.tune`: an import of it says what takes its place."""

from headrace.elsewhere import MODULE, no_attribute

raise ImportError(no_attribute("module 'headrace'", "tune", MODULE))
