"""What tests let ranks run: scenarios with bits to compare, and mistakes with the sentence that each must raise."""
