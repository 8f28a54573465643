"""What each op does with torch: gradients, torch.compile, and the portable backend. Nothing here is imported before a
call needs it.
"""
