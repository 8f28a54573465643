"""Reports: one HTML file about recordings. `report.py` makes it; `measures.py` has the numbers, `page.py` the page."""
