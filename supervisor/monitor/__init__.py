"""The monitor worker: pages, metrics and the admin API of one DRO over HTTP.

It reads counter pages and asks the admin socket like any other client; whatever happens to it, no portal notices.
"""
