"""The console: web pages that show studies, trials and the cluster, live.

An ordinary client of the scheduler: it calls the API with its user's token, knows no table, and runs anywhere.
"""
