"""What the launcher and its ranks agree on. Plain Python; it imports nothing of ours but `errors` and `machine`.

launcher:  os.environ of a rank = encode(settings, position)        environment, arithmetic, meeting_place
rank:      settings, position = decode(os.environ)                  environment
both:      who has which samples, lanes and layers                  layout/
both:      what can be known of a URL in the place of a path        url
both:      what a saved state is on the disk                        state_files/
rank:      what it is doing, for others to read                     journal/
rank:      run_folder.journal(rank), .failure(rank), .evidence      run_folder
"""
