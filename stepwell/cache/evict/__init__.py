"""What goes when memory is short: what each copy is worth, the order of all of them, and the room that is made by it.

policy ▸ ranking ▸ make_room        pins: what goes last        tenants: whose copies go first
"""
