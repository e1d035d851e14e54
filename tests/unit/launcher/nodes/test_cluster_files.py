"""The cluster files of examples/ say where each node is."""

import re
from pathlib import Path

from samebits.launcher.nodes.place import Options, choose_place

CLUSTERS = Path(__file__).parents[4] / "examples" / "clusters"


def test_the_pods_of_the_indexed_job_know_their_places():
    text = (CLUSTERS / "indexed-job.yaml").read_text()
    options = dict(re.findall(r"- --([\w-]+)=(\S+)", text))
    message = Options(nnodes=options["nnodes"], rdzv_endpoint=options["rdzv-endpoint"], rdzv_id=options["rdzv-id"])
    places = [choose_place(message, {"JOB_COMPLETION_INDEX": str(index)}) for index in range(2)]
    assert [place.number for place in places] == [0, 1]
    assert {(place.least, place.most, place.endpoint, place.job) for place in places} == {
        (2, 2, "train-0.train:29400", "train")
    }
    assert f"completions: {options['nnodes']}\n" in text
    assert "subdomain: train " in text


def test_the_nodes_of_the_skypilot_task_know_their_places():
    nodes = re.search(r"num_nodes: (\d+)", (CLUSTERS / "skypilot.yaml").read_text())[1]
    ips = "\n".join(f"10.0.0.{number + 1}" for number in range(int(nodes)))
    for number in range(int(nodes)):
        sky = {"SKYPILOT_NODE_RANK": str(number), "SKYPILOT_NUM_NODES": nodes, "SKYPILOT_NODE_IPS": ips}
        place = choose_place(Options(), sky)
        assert (place.number, place.most, place.endpoint) == (number, int(nodes), "10.0.0.1:29400")
