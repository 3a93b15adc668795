"""Pictures of simulations as SVG: drawn by hand, so that no plotting library is needed where schedulers run.

The colours are those of Okabe and Ito, as in the report; every kind also has a label, a marker or a tooltip.
"""
