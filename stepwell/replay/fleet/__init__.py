"""Several engines at once, each with a clock of its own, behind one router.

routing    who gets a request, and the models of other routers
simulate   the replicas side by side in virtual time       compare   several routings on one trace, in one table
"""
