"""What tests run on ranks: scenarios with bits to compare, and mistakes with the sentence that each must raise."""
