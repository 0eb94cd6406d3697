"""What our laboratory adds to Trimtab; its folders are named as Trimtab's own."""
