"""Changes of ortopt's own code, one at a time: which does no test notice?"""
