"""Which way of distributing SGD reaches a given accuracy soonest, and is what the papers say true there?"""
