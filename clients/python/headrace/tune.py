"""There is no `headrace.tune`: importing it raises an error that names the replacement."""

from headrace.elsewhere import MODULE, no_attribute

raise ImportError(no_attribute("module 'headrace'", "tune", MODULE))
