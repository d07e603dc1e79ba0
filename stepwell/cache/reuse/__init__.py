"""From a prompt to where its request starts: how far its prefix is cached, the plan, the loads, and how it ended.

survey ▸ plan ▸ admission ▸ outcome        explain: the same question without a request        prefetch: loads without one
"""
