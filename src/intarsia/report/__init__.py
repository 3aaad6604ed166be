"""What people look at: one page that shows a checkpoint, where its tensors lie and what is wrong."""
