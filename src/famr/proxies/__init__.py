"""Proxies: models that never saw what is to be forgotten, trained for a fraction of what retraining takes.

`recipe` says how one is trained, `training` trains it, `predictions` takes what it predicts on a forget set; `groups`
and `proxies` make a few for all later requests, which a sketch keeps; `cost` says beforehand what it takes.
"""
